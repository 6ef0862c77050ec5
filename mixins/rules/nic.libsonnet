// Recorded for the alerts on NICs (alerts/nic.libsonnet): what the gauge and the counter of disconnects tell where a mesh exporter
// does not give fabricpulse_nic_disconnected and fabricpulse_nic_recent_disconnect_age_seconds, which exist only of NICs that are
// or were disconnected. Each reads a series of each NIC several times, too dear for each evaluation.
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local config = $._config,
    local s = signals(config),
    groups+: [
      {
        name: 'fabricpulse-nic.rules',
        interval: config.seldomInterval,
        rules: [
          { record: 'device:fabricpulse_nic_connected:zero', expr: s.nicLastZero },
          { record: 'device:fabricpulse_nic_connected:all_zero', expr: s.nicAllZero },
          { record: 'device:fabricpulse_nic_connected:outdated_zero', expr: s.nicOutdatedZero },
        ],
      },
      {
        // A quarter of flapWindow at most.
        name: 'fabricpulse-flaps.rules',
        interval: config.slowInterval,
        rules: [
          { record: 'device:fabricpulse_nic_disconnects:flaps', expr: s.countedFlaps(config.flapWindow, config.flapThreshold) },
        ],
      },
      {
        // An hour of each NIC, for an alert that is evaluated as seldom.
        name: 'fabricpulse-nic-rare.rules',
        interval: config.rareInterval,
        rules: [
          { record: 'device:fabricpulse_nic_disconnects:slow_flaps', expr: s.countedFlaps(config.slowFlapWindow, config.slowFlapThreshold) },
        ],
      },
    ],
  },
}
