// Recorded for the dashboards: what would be slow to compute over a fleet for each panel.
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local s = signals($._config),
    local c = $._config.clusterLabel,
    groups+: [
      {
        name: 'fabricpulse-fabric.rules',
        interval: $._config.flowInterval,
        rules: [
          {
            record: 'network:fabricpulse_nic_connected:ratio',
            expr: 'avg by (%s, network) (%s)' % [c, s.nicConnected],
          },
          {
            // NICs whose health is known, whichever daemon tells it.
            record: 'network:fabricpulse_nic_connected:count',
            expr: 'sum by (%s, network) (group by (%s, instance, device, network) (%s))' % [c, c, s.nicConnected],
          },
        ],
      },
      {
        name: 'fabricpulse-probe-delay.rules',
        interval: $._config.seldomInterval,
        rules: [
          {
            record: 'device:fabricpulse_probe_owd_seconds:p99_5m',
            expr: s.quantile(0.99, 'fabricpulse_probe_owd_seconds', '5m', c + ', instance, device, network'),
          },
          // Both quantiles of it: rates of all buckets are what takes long.
          {
            record: 'network:fabricpulse_probe_owd_seconds_bucket:rate5m',
            expr: 'sum by (%s, network, le) (rate(%s[5m]))' % [c, s.series('fabricpulse_probe_owd_seconds_bucket')],
          },
          {
            record: 'network:fabricpulse_probe_owd_seconds:p99_5m',
            expr: 'histogram_quantile(0.99, network:fabricpulse_probe_owd_seconds_bucket:rate5m%s)' % s.braces,
          },
          {
            record: 'network:fabricpulse_probe_owd_seconds:p50_5m',
            expr: 'histogram_quantile(0.5, network:fabricpulse_probe_owd_seconds_bucket:rate5m%s)' % s.braces,
          },
        ],
      },
    ],
  },
}
