// Share of edges of a network that keep what is promised, now; averaged over time it is the share of time kept.
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local config = $._config,
    local s = signals(config),
    local c = config.clusterLabel,
    local edge = '%s, instance, device, peer, peer_device' % c,
    local network = 'group by (%s, instance, device, network) (%s)' % [c, s.last('fabricpulse_nic_connected')],
    local share(kept) = 'avg by (%(c)s, network) ((%(kept)s) * on (%(c)s, instance, device) group_left (network) %(network)s)' % { c: c, kept: kept, network: network },
    local increase(name) = 'increase(%s[5m])' % s.series(name),
    local lost = increase('fabricpulse_edge_probes_lost_total'),
    local received = increase('fabricpulse_edge_probes_received_total'),
    groups+: [
      {
        // Averaged over an hour.
        name: 'fabricpulse-slo.rules',
        interval: config.slowInterval,
        rules: [
          {
            record: 'network:fabricpulse_edge_owd_seconds:slo_ratio',
            expr: share('max by (%s) (%s) <= bool %g' % [edge, s.last('fabricpulse_edge_owd_seconds', 'quantile="0.99"'), config.sloOwdSeconds]),
          },
          {
            record: 'network:fabricpulse_edge_probes_lost:slo_ratio',
            // lost / (lost + received) is below the ratio. An edge of which nothing is known does not keep it.
            expr: share('%s * %g < bool %s' % [lost, (1 - config.sloLossRatio) / config.sloLossRatio, received]),
          },
        ],
      },
    ],
  },
}
