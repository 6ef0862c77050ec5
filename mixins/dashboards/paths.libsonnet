// One-way delay: which direction of which path is slow.
local g = import '../lib/panels.libsonnet';
local signals = import '../signals.libsonnet';
{
  grafanaDashboards+:: {
    local config = $._config,
    local cluster = g.clusterMatcher(config),
    // `selector` is put in by signals.
    local chosen = '%s=~"$%s"' % [config.clusterLabel, config.clusterLabel],
    local edge = signals(config, chosen + ', instance=~"$instance", peer=~"$peer"'),
    local worst(series, labels, among='') = g.worst(config, series, labels, among=among),
    local received(quantile) = signals(config, chosen + ', instance=~"$instance", network=~"$network"').series('fabricpulse_probe_recent_owd_seconds', 'quantile="%s"' % quantile),
    local nics = signals(config, chosen + ', instance=~"$instance"').series('fabricpulse_nic_state', 'network=~"$network"'),
    // Series of edges do not say which network they are in; the state of their NIC does, also while it is unknown. At one
    // moment for the whole panel: at each it would be most of what the page costs.
    local inNetwork = 'and on (%(c)s, instance, device) last_over_time(%(nics)s[$__range] @ end())' % {
      c: config.clusterLabel,
      nics: nics,
    },
    local delay = [
      { color: 'green', value: null },
      { color: 'yellow', value: 0.0002 },
      { color: 'red', value: 0.001 },
    ],

    'fabricpulse-paths.json': g.dashboard(
      config,
      'paths',
      'Path delay',
      'One-way delay of the probes, in each direction on its own, on fleet time.',
      [
        g.variable(config, 'instance', 'Receiving host', 'fabricpulse_nic_connected', cluster),
        g.variable(config, 'peer', 'Sending host', 'fabricpulse_edge_up', cluster + ', instance=~"$instance"'),
        g.variable(config, 'network', 'Network', 'fabricpulse_nic_connected', cluster + ', instance=~"$instance"'),
      ],
      [
        g.row('Networks', [
          g.timeseries('Probe delay by network', "One-way delay of what the NICs of a network receive within five minutes: the 99th percentile of the worst NIC, and the median NIC's median.", 's', [
            g.query('max by (network) (%s)' % received('0.99'), '{{network}} worst p99'),
            g.query('quantile by (network) (0.5, %s)' % received('0.5'), '{{network}} median'),
          ]),
          g.timeseries('Probe delay by NIC, p99', 'One-way delay of what a NIC receives, 99th percentile of five minutes; the twenty that were worst in the range.', 's', [
            g.query(worst(received('0.99'), 'instance, device'), '{{instance}} {{device}}'),
          ]),
        ]),
        g.row('Pairs', [
          g.matrix(
            'Delay by rail, worst hosts',
            'What each host receives on each network, 99th percentile of five minutes; the thirty worst hosts. A red column is a rail or a leaf, a red row a host.',
            's',
            g.query('max by (instance, network) (%(owd)s) and on (instance) topk(30, max by (instance) (%(owd)s))' % { owd: received('0.99') }),
            'instance',
            'network',
            delay
          ),
          g.table('Slowest edges', 'The ten largest 99th percentiles of the last interval. A fleet of more than 64 hosts exports single edges only while they suffer.', 's', [
            g.query('topk(10, %s %s)' % [edge.series('fabricpulse_edge_owd_seconds', 'quantile="0.99"'), inNetwork]),
          ], [['peer', 'from host'], ['peer_device', 'from NIC'], ['instance', 'to host'], ['device', 'to NIC'], ['Value', 'p99']], ['job', 'quantile', 'exported_job', config.clusterLabel]),
          g.timeseries('Delay per edge, p99', 'One-way delay of a pair of NICs, 99th percentile of an interval.', 's', [
            g.query(worst(edge.series('fabricpulse_edge_owd_seconds', 'quantile="0.99"'), 'instance, device, peer, peer_device', inNetwork), '{{peer}} {{peer_device}} → {{instance}} {{device}}'),
          ]),
        ]),
        g.row('Loss', [
          g.timeseries('Lossy edges', "Share of the sender's probes that did not arrive within %s, by the sender's own numbering; only edges that lose more than %g %% and are not silent altogether; the twenty that were worst in the range." % [config.pathLossWindow, 100 * config.pathLossRatio], 'percentunit', [
            g.query(worst('edge:fabricpulse_edge_probes_lost:lossy_ratio{%s, instance=~"$instance", peer=~"$peer"}' % cluster, 'instance, device, peer, peer_device', inNetwork), '{{peer}} {{peer_device}} → {{instance}} {{device}}'),
            // Only where all NICs that were measured in the range still are.
            g.query(
              '0 * count(network:fabricpulse_edge_probes_lost:slo_ratio{%(c)s, network=~"$network"} @ end()) unless on () count(last_over_time(edge:fabricpulse_edge_probes_lost:lossy_ratio{%(c)s, instance=~"$instance", peer=~"$peer"}[$__range] @ end())) unless on () (last_over_time(%(nics)s[$__range] @ end()) unless %(nics)s @ end())' % { c: cluster, nics: nics },
              'none in the range'
            ),
          ]),
          g.timeseriesLeast('Edges within the objective on loss', 'Share of the edges of a network that lose less than %g %% now.' % (100 * config.sloLossRatio), 'percentunit', [
            g.query('network:fabricpulse_edge_probes_lost:slo_ratio{%s, network=~"$network"}' % cluster, '{{network}}'),
          ]),
          g.timeseries('Clock error bound', 'What a delay on this page may be wrong by; the twenty hosts that were worst in the range.', 's', [
            g.query(worst(signals(config, chosen + ', instance=~"$instance"').series('fabricpulse_clock_error_bound_seconds'), 'instance'), '{{instance}}'),
          ]),
        ]),
      ]
    ),
  },
}
