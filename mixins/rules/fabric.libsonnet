// Recorded for the dashboards: what would be slow to compute over a fleet for each panel.
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local s = signals($._config),
    local c = $._config.clusterLabel,
    groups+: [
      {
        name: 'fabricpulse-fabric.rules',
        interval: $._config.rareInterval,
        rules: [
          {
            record: 'network:fabricpulse_nic_connected:ratio',
            expr: 'avg by (%s, network) (%s)' % [c, s.nicConnected],
          },
          {
            // NICs whose health is known, whichever daemon tells it.
            record: 'network:fabricpulse_nic_connected:count',
            expr: 'sum by (%s, network) (device:fabricpulse_nic_network:info%s)' % [c, s.braces],
          },
        ],
      },
    ],
  },
}
