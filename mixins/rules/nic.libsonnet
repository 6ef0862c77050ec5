// Recorded for the alerts on NICs (alerts/nic.libsonnet): what the gauge of all NICs tells where a mesh exporter does not give
// fabricpulse_nic_disconnected, which exists only of NICs that are or were disconnected. It reads a series of each NIC, too dear for
// each evaluation.
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local config = $._config,
    local s = signals(config),
    groups+: [
      {
        name: 'fabricpulse-nic.rules',
        interval: config.rareInterval,
        rules: [
          { record: 'device:fabricpulse_nic_connected:zero', expr: s.nicLastZero },
          { record: 'device:fabricpulse_nic_connected:all_zero', expr: s.nicAllZero },
          { record: 'device:fabricpulse_nic_connected:outdated_zero', expr: s.nicOutdatedZero },
        ],
      },
    ],
  },
}
