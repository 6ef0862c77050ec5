// Recorded for the dashboards: what would be slow to compute over a fleet for each panel.
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local s = signals($._config),
    local c = $._config.clusterLabel,
    groups+: [
      {
        name: 'fabricpulse-fabric.rules',
        rules: [
          {
            record: 'network:fabricpulse_nic_connected:ratio',
            expr: 'avg by (%s, network) (%s)' % [c, s.nicConnected],
          },
          {
            record: 'device:fabricpulse_probe_owd_seconds:p99_5m',
            expr: s.quantile(0.99, 'fabricpulse_probe_owd_seconds', '5m', c + ', instance, device, network'),
          },
          {
            record: 'network:fabricpulse_probe_owd_seconds:p99_5m',
            expr: s.quantile(0.99, 'fabricpulse_probe_owd_seconds', '5m', c + ', network'),
          },
          {
            record: 'network:fabricpulse_probe_owd_seconds:p50_5m',
            expr: s.quantile(0.5, 'fabricpulse_probe_owd_seconds', '5m', c + ', network'),
          },
        ],
      },
    ],
  },
}
