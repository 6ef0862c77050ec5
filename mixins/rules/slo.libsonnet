// Share of edges of a network that keep what is promised, now; averaged over time it is the share of time kept. Those that
// do not are counted, against what NICs say that they have: a large fleet exports single edges only while they suffer
// (per_edge of the mesh exporter).
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local config = $._config,
    local s = signals(config),
    local c = config.clusterLabel,
    local edge = '%s, instance, device, peer, peer_device' % c,
    local network = 'device:fabricpulse_nic_network:info' + s.braces,
    // `how`: count, or sum of what is 1.
    local edges(how, some) = '%(how)s by (%(c)s, network) ((%(some)s) * on (%(c)s, instance, device) group_left (network) %(network)s)' % { how: how, c: c, some: some, network: network },
    // How many edges there are: what NICs say, or what is exported where they do not. Most states of a NIC have none.
    local ofNics(states) = 'max by (%s, instance, device, network, state) (%s > 0)' % [c, s.last('fabricpulse_nic_edges', 'state=~"%s"' % states)],
    local total(nics, known) = 'sum by (%(c)s, network) (%(nics)s) or on (%(c)s, network) %(known)s' % { c: c, nics: nics, known: edges('sum', 'group by (%s) (%s)' % [edge, known]) },
    local share(missed, all) = '1 - (%(missed)s or on (%(c)s, network) 0 * %(all)s) / on (%(c)s, network) %(all)s' % { c: c, missed: missed, all: all + s.braces },
    local increase(name) = 'increase(%s[5m])' % s.series(name),
    local lost = increase('fabricpulse_edge_probes_lost_total'),
    local received = increase('fabricpulse_edge_probes_received_total'),
    local delay = s.last('fabricpulse_edge_owd_seconds', 'quantile="0.99"'),
    groups+: [
      {
        // Averaged over an hour.
        name: 'fabricpulse-slo.rules',
        interval: config.rareInterval,
        rules: [
          {
            // Those whose delay is known: a NIC of a host without fleet time measures none.
            record: 'network:fabricpulse_nic_edges:timed',
            expr: total('%s and on (%s, instance, device) %s' % [ofNics('up'), c, s.last('fabricpulse_probe_recent_owd_seconds', 'quantile="0.99"')], delay),
          },
          {
            record: 'network:fabricpulse_nic_edges:count',
            // Of an edge with one sample nothing is known.
            expr: total(ofNics('up|down|unknown'), 'irate(%s[5m])' % s.series('fabricpulse_edge_probes_received_total')),
          },
          {
            record: 'network:fabricpulse_edge_owd_seconds:slo_ratio',
            expr: share(edges('count', 'max by (%s) (%s) > %g' % [edge, delay, config.sloOwdSeconds]), 'network:fabricpulse_nic_edges:timed'),
          },
          {
            record: 'network:fabricpulse_edge_probes_lost:slo_ratio',
            // lost / (lost + received) is not below the ratio. An edge of which nothing is known does not keep it.
            expr: share(edges('sum', 'group by (%s) (%s * %g >= %s)' % [edge, lost, (1 - config.sloLossRatio) / config.sloLossRatio, received]), 'network:fabricpulse_nic_edges:count'),
          },
        ],
      },
    ],
  },
}
