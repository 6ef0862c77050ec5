// A training job: what it moves over which NIC, and what the network made it wait for.
local g = import '../lib/panels.libsonnet';
local signals = import '../signals.libsonnet';
{
  grafanaDashboards+:: {
    local config = $._config,
    local cluster = '%s=~"$%s"' % [config.clusterLabel, config.clusterLabel],
    local s = signals(config, cluster + ', workload=~"$workload", instance=~"$instance"'),
    local panel = '{%s, workload=~"$workload", instance=~"$instance"}' % g.clusterMatcher(config),

    'fabricpulse-job.json': g.dashboard(
      config,
      'job',
      'Job',
      'Traffic, delay and failovers of a training job, as its NCCL plugin tells them.',
      [
        g.variable(config, 'workload', 'Workload', 'fabricpulse_lane_state', g.clusterMatcher(config)),
        g.variable(config, 'instance', 'Host', 'fabricpulse_lane_state', g.clusterMatcher(config) + ', workload=~"$workload"'),
      ],
      [
        g.row('Traffic', [
          g.timeseries('Sent by NIC', 'Bytes that the job sends over each NIC.', 'Bps', [
            g.query('device:fabricpulse_qp_sent_bytes:rate1m' + panel, '{{instance}} {{device}}'),
          ]),
          g.timeseries('Received by NIC', 'Bytes that the job receives over each NIC.', 'Bps', [
            g.query('device:fabricpulse_qp_received_bytes:rate1m' + panel, '{{instance}} {{device}}'),
          ]),
        ]),
        g.row('Lanes', [
          g.statusHistory(
            'Lanes in service',
            'Whether the job uses a NIC. Red: taken out or down, the others carry its share.',
            [g.query(s.series('fabricpulse_lane_state'), '{{workload}} {{instance}} {{device}}')],
            { '0': { text: 'out of service', color: 'red' }, '1': { text: 'in service', color: 'green' } }
          ),
          g.timeseries('Failovers', 'How often traffic was moved away from a NIC, per five minutes.', 'short', [
            g.query('%s > 0' % s.laneFailovers('5m'), '{{instance}} {{device}}'),
          ]),
          g.timeseries('Retransmits', 'Retransmitted packets of the lanes.', 'pps', [
            g.query('sum by (instance, device) (rate(%s[1m]))' % s.series('fabricpulse_qp_retransmits_total'), '{{instance}} {{device}}'),
          ]),
        ]),
        g.row('Flows', [
          g.scatter(
            'Throughput against one-way delay',
            'One dot a flow (NIC pair). A healthy flow lies lower right; a slow one stands alone, upper left.',
            g.query('flow:fabricpulse_qp_sent_bytes:rate1m' + panel),
            g.query('flow:fabricpulse_qp_owd_seconds:p50_1m' + panel),
            ['throughput', 'delay'],
            ['Bps', 's']
          ),
          g.timeseries('Contention score', "By how much a flow is slower than the quick quarter of its job's flows; above %g it is looked at. The worst of the range." % config.contentionScore, 'none', [
            g.query('flow:fabricpulse_qp_owd_seconds:contention_score%s and on (%s, instance, workload, device, peer, peer_device) topk(20, max_over_time(flow:fabricpulse_qp_owd_seconds:contention_score%s[$__range] @ end()))' % [panel, config.clusterLabel, panel], '{{instance}} {{device}} → {{peer}} {{peer_device}}'),
          ]),
          g.timeseries('Collective bandwidth', 'Payload of one rank by duration, mean of the ranks.', 'Bps', [
            g.query('workload:fabricpulse_collective_bandwidth_bytes_per_second:avg{%s, workload=~"$workload"}' % g.clusterMatcher(config), '{{workload}} {{collective}}'),
          ]),
          g.table('Who waits for whom', 'Requests that have not ended, the oldest first.', 's', [
            g.query('sort_desc(%s)' % s.series('fabricpulse_request_waiting_seconds')),
          ], { Value: 'for', instance: 'host', rank: 'rank', peer: 'waits for host', peer_rank: 'waits for rank', waits_for: 'what' }, ['job', config.clusterLabel]),
        ]),
        g.row('Delay', [
          g.timeseries('In-band delay of the job, p99', 'One-way delay of the chunks of a job, 99th percentile of five minutes.', 's', [
            g.query('workload:fabricpulse_qp_owd_seconds:p99_5m{%s, workload=~"$workload"}' % g.clusterMatcher(config), '{{workload}}'),
          ]),
          g.timeseries('In-band delay by path, p99', 'The same per pair of NICs; the twenty slowest.', 's', [
            g.query('topk(20, %s)' % s.quantile(0.99, 'fabricpulse_qp_owd_seconds', '5m'), '{{peer}} {{peer_device}} → {{instance}} {{device}}'),
          ]),
        ]),
      ]
    ),
  },
}
