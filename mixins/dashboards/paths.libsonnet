// One-way delay: which direction of which path is slow.
local g = import '../lib/panels.libsonnet';
local suspects = import '../lib/suspects.libsonnet';
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
    local among(nics) = 'and on (%s, instance, device) last_over_time(%s[$__range] @ end())' % [config.clusterLabel, nics],
    local inNetwork = among(nics),
    local ofAllHosts = among(signals(config, chosen).series('fabricpulse_nic_state', 'network=~"$network"')),
    // Of an edge, by what is wrong with it.
    local edges(name, above='') = [
      g.query(worst(edge.series(name), 'instance, device, peer, peer_device', above + inNetwork), arrow),
    ],
    // Where no edge had a path that is down, lossy or slow: single edges are not exported in a large fleet.
    local noneDegraded =
      local degraded = signals(config, chosen + ', instance=~"$instance", network=~"$network"').series('fabricpulse_nic_edges', 'state="degraded"');
      g.allZero(degraded, 'max_over_time(%s[$__range] @ end()) > 0' % degraded),
    local arrow = '{{peer}} {{peer_device}} → {{instance}} {{device}}',
    // Of the whole fabric, from the coordinator: what is below a network has its name, switches above have none.
    local fabric = signals(config, chosen + ', network=~"$network|"'),
    local all = signals(config, chosen),
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
        // Not by series of edges: a large fleet exports none that is well.
        g.variable(config, 'peer', 'Sending host', 'fabricpulse_nic_connected', cluster, of='instance'),
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
            config,
            'Delay by rail, worst hosts',
            'What each host receives on each network, 99th percentile of five minutes; the thirty worst hosts. A red column is a rail or a leaf, a red row a host.',
            's',
            g.query('max by (%(c)s, instance, network) (%(owd)s) and on (%(c)s, instance) topk(30, max by (%(c)s, instance) (%(owd)s))' % { c: config.clusterLabel, owd: received('0.99') }),
            'paths',
            delay
          ),
          g.table(config, 'Slowest edges', 'The ten largest 99th percentiles of the last interval. A fleet of more than 64 hosts exports single edges only while they suffer.', 's', [
            g.query('topk(10, %s %s)' % [edge.series('fabricpulse_edge_owd_seconds', 'quantile="0.99"'), inNetwork]),
          ], [['peer', 'from host'], ['peer_device', 'from NIC'], ['instance', 'to host'], ['device', 'to NIC'], ['Value', 'p99']], ['job', 'quantile', 'exported_job']),
          g.timeseries('Delay per edge, p99', 'One-way delay of a pair of NICs, 99th percentile of an interval.', 's', [
            g.query(worst(edge.series('fabricpulse_edge_owd_seconds', 'quantile="0.99"'), 'instance, device, peer, peer_device', inNetwork), arrow),
          ]) + g.mayBeNone,
        ]),
        g.row('Suspects', [
          suspects(config, function(matchers) fabric.series('fabricpulse_fault_component', matchers)),
          g.timeseries('Suspected components', 'Probability that this switch, link, host or NIC is what makes flows suffer, by the evidence of all hosts; the twenty likeliest of the range.', 'percentunit', [
            g.query(worst(fabric.series('fabricpulse_fault_component'), 'what, kind, faulty, peer'), '{{what}} {{kind}} {{faulty}} {{peer}}'),
          ]) + g.mayBeNone,
          g.timeseries('Flows that suffer and cross the suspect', 'How many, of the twenty with most in the range.', 'short', [
            g.query(worst(all.series('fabricpulse_fault_component_flows'), 'what, kind, faulty, peer', 'and on (%s, what, kind, faulty, peer) last_over_time(%s[$__range] @ end())' % [config.clusterLabel, fabric.series('fabricpulse_fault_component')]), '{{what}} {{kind}} {{faulty}} {{peer}}'),
          ]) + g.mayBeNone,
          g.timeseries('Next hops missing', 'How many next hops fewer a leaf has than most of its siblings, by the traced paths; the twenty with most in the range.', 'short', [
            g.query(worst(fabric.series('fabricpulse_leaf_paths_missing'), 'leaf, network'), '{{leaf}} {{network}}'),
            // Of leaves whose paths are known, none of which had fewer in the range.
            g.query('0 * (sum(%s) > 0) unless on () count(last_over_time(%s[$__range] @ end()))' % [all.series('fabricpulse_leaves', 'paths="whole"'), fabric.series('fabricpulse_leaf_paths_missing')], 'none of what is measured'),
          ]) + g.mayBeNone,
          g.table(config, 'Cables at a wrong leaf', 'NICs that are at another leaf than the topology file, their rail or the other NICs of their host suggest.', 'none', local miscabled = signals(config, chosen + ', peer=~"$peer"').series('fabricpulse_topology_nic_miscabled'); [
            g.query('max by (%s, peer, peer_device, reason, at, expected) (%s)' % [config.clusterLabel, miscabled]),
            g.noneOf(all.series('fabricpulse_topology_known') + ' == 1', miscabled, 'peer', 'those whose leaf is known'),
          ], [['peer', 'host'], ['peer_device', 'NIC'], ['at', 'is at'], ['expected', 'belongs to'], ['reason', 'reason']], ['Value']),
        ]),
        g.row('Paths', [
          g.timeseries('Edges above their baseline', 'Median delay of pairs of NICs whose delay is far above its own baseline, while it is; the twenty that were slowest in the range.', 's', [
            g.query(worst('edge:fabricpulse_edge_owd_seconds:slow{%s, instance=~"$instance", peer=~"$peer"}' % cluster, 'instance, device, peer, peer_device', inNetwork), arrow),
          ]) + g.mayBeNone,
          g.timeseries('Dead paths', 'Source ports whose packets do not arrive while others between the same NICs do; the twenty edges with most in the range.', 'short', edges('fabricpulse_edge_paths_down', '> 0 ') + [noneDegraded]) + g.mayBeNone,
          g.timeseries('Loss of the worst path', 'Share of packets lost on the source port that loses most; the twenty worst edges of the range.', 'percentunit', edges('fabricpulse_edge_worst_path_loss_ratio')),
          g.timeseries('Packets dropped for their size, bytes', 'The smallest that do not arrive while small ones do, from or to the hosts chosen; twenty edges of the range.', 'none', [
            g.query('%s or %s' % [worst(signals(config, chosen + ends).series('fabricpulse_edge_mtu_black_hole_bytes'), 'instance, device, peer, peer_device', ofAllHosts) for ends in [
              ', instance=~"$instance", peer=~"$peer"',
              ', peer=~"$instance", instance=~"$peer"',
            ]], arrow),
          ]) + g.mayBeNone,
        ]),
        g.row('Loss', [
          g.timeseries('Lossy edges', "Share of the sender's probes that did not arrive within %s, by the sender's own numbering; only edges that lose more than %g %% and are not silent altogether; the twenty that were worst in the range." % [config.pathLossWindow, 100 * config.pathLossRatio], 'percentunit', [
            g.query(worst('edge:fabricpulse_edge_probes_lost:lossy_ratio{%s, instance=~"$instance", peer=~"$peer"}' % cluster, 'instance, device, peer, peer_device', inNetwork), arrow),
            // Only where all NICs that were measured in the range still are.
            g.query(
              '0 * count(network:fabricpulse_edge_probes_lost:slo_ratio{%(c)s, network=~"$network"} @ end()) unless on () count(last_over_time(edge:fabricpulse_edge_probes_lost:lossy_ratio{%(c)s, instance=~"$instance", peer=~"$peer"}[$__range] @ end())) unless on () (last_over_time(%(nics)s[$__range] @ end()) unless %(nics)s @ end())' % { c: cluster, nics: nics },
              'none in the range'
            ),
          ]) + g.mayBeNone,
          g.timeseriesLeast('Edges within the objectives', 'Share of the edges of a network that lose less than %g %% now, and of those whose delay is known of which 99 %% of the probes take less than %g s.' % [100 * config.sloLossRatio, config.sloOwdSeconds], 'percentunit', [
            g.query('network:fabricpulse_edge_probes_lost:slo_ratio{%s, network=~"$network"}' % cluster, '{{network}} loss'),
            g.query('network:fabricpulse_edge_owd_seconds:slo_ratio{%s, network=~"$network"}' % cluster, '{{network}} delay'),
          ]),
          g.timeseries('Clock error bound', 'What a delay on this page may be wrong by; the twenty hosts that were worst in the range.', 's', [
            g.query(worst(signals(config, chosen + ', instance=~"$instance"').series('fabricpulse_clock_error_bound_seconds'), 'instance'), '{{instance}}'),
          ]),
        ]),
      ]
    ),
  },
}
