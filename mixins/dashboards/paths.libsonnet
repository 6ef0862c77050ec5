// One-way delay: which direction of which path is slow.
local g = import '../lib/panels.libsonnet';
local signals = import '../signals.libsonnet';
{
  grafanaDashboards+:: {
    local config = $._config,
    local cluster = '%s=~"$%s"' % [config.clusterLabel, config.clusterLabel],
    local s = signals(config, cluster + ', instance=~"$instance", network=~"$network"'),
    local edge = signals(config, cluster + ', instance=~"$instance", peer=~"$peer"'),
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
        g.variable(config, 'instance', 'Receiving host', 'fabricpulse_edge_up', cluster),
        g.variable(config, 'peer', 'Sending host', 'fabricpulse_edge_up', 'instance=~"$instance"'),
        g.variable(config, 'network', 'Network', 'fabricpulse_nic_connected', 'instance=~"$instance"'),
      ],
      [
        g.row('Networks', [
          g.timeseries('Probe delay by network, p99', 'One-way delay over all paths of a network, 99th percentile of five minutes.', 's', [
            g.query('network:fabricpulse_probe_owd_seconds:p99_5m{network=~"$network"}', '{{network}}'),
          ]),
          g.timeseries('Probe delay by NIC, p99', 'One-way delay of what a NIC receives, 99th percentile of five minutes.', 's', [
            g.query('device:fabricpulse_probe_owd_seconds:p99_5m{instance=~"$instance", network=~"$network"}', '{{instance}} {{device}}'),
          ]),
        ]),
        g.row('Pairs', [
          g.matrix(
            'Delay matrix, median',
            'Median one-way delay of the last interval from each sending host (columns) to each receiving host (rows), the worst NIC pair of the two.',
            's',
            g.query('max by (instance, peer) (%s)' % edge.series('fabricpulse_edge_owd_seconds', 'quantile="0.5"')),
            'instance',
            'peer',
            delay
          ),
          g.table('Slowest paths', 'The ten largest 99th percentiles of the last interval.', 's', [
            g.query('topk(10, %s)' % edge.series('fabricpulse_edge_owd_seconds', 'quantile="0.99"')),
          ], { Value: 'p99', instance: 'to host', device: 'to NIC', peer: 'from host', peer_device: 'from NIC' }, ['job', 'quantile']),
          g.timeseries('Delay per path, p99', 'One-way delay of a pair of NICs, 99th percentile of an interval.', 's', [
            g.query('topk(20, %s)' % edge.series('fabricpulse_edge_owd_seconds', 'quantile="0.99"'), '{{peer}} {{peer_device}} → {{instance}} {{device}}'),
          ]),
        ]),
        g.row('Loss', [
          g.timeseries('Probe loss per path', 'Share of probes sent that were not answered, over a minute.', 'percentunit', [
            g.query(
              '1 - rate(%s[1m]) / rate(%s[1m]) > 0' % [
                edge.series('fabricpulse_edge_probes_received_total'),
                edge.series('fabricpulse_edge_probes_sent_total'),
              ],
              '{{instance}} {{device}} – {{peer}} {{peer_device}}'
            ),
          ]),
          g.timeseries('Clock error bound', 'What a delay on this page may be wrong by, per host.', 's', [
            g.query(signals(config, cluster + ', instance=~"$instance"').series('fabricpulse_clock_error_bound_seconds'), '{{instance}}'),
          ]),
        ]),
      ]
    ),
  },
}
