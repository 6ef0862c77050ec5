// A training job: what it moves over which NIC, and what the network made it wait for.
local gpus = import '../lib/gpus.libsonnet';
local g = import '../lib/panels.libsonnet';
local signals = import '../signals.libsonnet';
{
  grafanaDashboards+:: {
    local config = $._config,
    local cluster = '%s=~"$%s"' % [config.clusterLabel, config.clusterLabel],
    local s = signals(config, cluster + ', workload=~"$workload", instance=~"$instance"'),
    local nic = 'instance, workload, device',
    local flow = nic + ', peer, peer_device',
    // Ranks wait for those of other hosts, so that these two are of all hosts of a job.
    local job = signals(config, cluster + ', workload=~"$workload"'),
    local waited(name, by) = 'sum by (%s, workload, %s) (rate(%s[$__rate_interval]))' % [config.clusterLabel, by, job.series(name)],
    local nic_rank = 'instance, workload, rank',
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
          g.timeseriesLeast('Sent by NIC, the least', 'Bytes that the job sends over a NIC; the twenty NICs that sent least in the range.', 'Bps', [
            g.query(g.least(config, 'device:fabricpulse_qp_sent_bytes:rate2m' + panel, nic), '{{instance}} {{device}}'),
          ]),
          g.timeseriesLeast('Received by NIC, the least', 'Bytes that the job receives over a NIC; the twenty NICs that received least in the range.', 'Bps', [
            g.query(g.least(config, 'device:fabricpulse_qp_received_bytes:rate2m' + panel, nic), '{{instance}} {{device}}'),
          ]),
        ]),
        g.row('Lanes', [
          g.stateTimeline(
            config,
            'Lanes that were out of service',
            'Whether the job uses a NIC; the twenty NICs that it did not use for longest in the range. Red: taken out or down, the others carry its share.',
            s.series('fabricpulse_lane_state'),
            {
              on: '%s, %s' % [config.clusterLabel, nic],
              series: 'bottomk(20, min by (%s, %s) (avg_over_time(%s[$__range] @ end())) < 1)' % [config.clusterLabel, nic, s.series('fabricpulse_lane_state')],
            },
            '{{workload}} {{instance}} {{device}}',
            s.series('fabricpulse_lane_state'),
            { '0': { text: 'out of service', color: 'red' }, '1': { text: 'in service', color: 'green' } }
          ),
          g.timeseries('Lanes by state', 'How many lanes of a job are in which state; of last resort: it goes on over TCP.', 'none', [
            g.query('sum by (%s, workload, state) (%s)' % [config.clusterLabel, s.series('fabricpulse_lanes')], '{{workload}} {{state}}'),
          ]),
          g.timeseries('Failovers', 'How often traffic was moved away from a NIC, per five minutes; the twenty NICs with most in the range.', 'short', [
            g.query(g.rising(config, s.laneFailovers('5m'), s.series('fabricpulse_lane_failovers_total'), nic), '{{instance}} {{device}}'),
            g.unchanged([s.series('fabricpulse_lane_failovers_total')]),
          ]),
          g.timeseries('Retransmits, packets/s', 'Retransmitted packets of the lanes; the twenty NICs with most in the range.', 'short', [
            g.query(
              g.rising(
                config,
                'sum by (%s, %s) (rate(%s[$__rate_interval]))' % [config.clusterLabel, nic, s.series('fabricpulse_qp_retransmits_total')],
                s.series('fabricpulse_qp_retransmits_total'),
                nic
              ),
              '{{instance}} {{device}}'
            ),
            g.unchanged([s.series('fabricpulse_qp_retransmits_total')]),
          ]),
        ]),
        g.row('Flows', g.countedScatter(
          'Throughput against one-way delay',
          'One dot a flow (NIC pair). A healthy flow lies lower right; a slow one stands alone, upper left.',
          'flow:fabricpulse_qp_received_bytes:rate2m' + panel,
          'flow:fabricpulse_qp_owd_seconds:p50_2m' + panel,
          '%s, %s' % [config.clusterLabel, flow],
          ['throughput', 'delay'],
          ['Bps', 's'],
          'the delay of no flow is known, as without fleet time'
        ) + [
          g.timeseries('Contention score', "By how much a flow is slower than the quick quarter of its job's flows; above %g the flow counts as slow. The worst of the range." % config.contentionScore, 'none', [
            g.query(g.worst(config, 'flow:fabricpulse_qp_owd_seconds:contention_score' + panel, flow), '{{peer}} {{peer_device}} → {{instance}} {{device}}'),
          ]),
          g.timeseries('Collective bandwidth', 'Payload of one rank by duration, mean of the ranks.', 'Bps', [
            g.query('workload:fabricpulse_collective_bandwidth_bytes_per_second:avg{%s, workload=~"$workload"}' % g.clusterMatcher(config), '{{workload}} {{collective}}'),
          ]),
          gpus(config, '%s, workload=~"$workload"' % g.clusterMatcher(config)).overTime,
          g.table(config, 'Who waits for whom', 'Requests that have not ended, the oldest first.', 's', [
            g.query('sort_desc(%s)' % s.series('fabricpulse_request_waiting_seconds')),
          ], [['workload', 'workload'], ['instance', 'host'], ['rank', 'rank'], ['peer', 'on host'], ['peer_rank', 'on rank'], ['waits_for', 'what'], ['Value', 'for']], ['job']),
        ]),
        g.row('Ranks', [
          g.timeseries('Waits and silent processes', 'How long requests of a rank have been waiting, and how long a process has given no sign of life; the twenty longest of the range of each. Of a job that only the profiler sees: how long a rank has been inside collectives of which none ends.', 's', [
            g.query(g.worst(config, s.series('fabricpulse_request_waiting_seconds'), nic_rank + ', peer_rank, waits_for'), '{{workload}} rank {{rank}} waits for {{peer_rank}} ({{waits_for}})'),
            g.query(g.worst(config, s.series('fabricpulse_plugin_silent_seconds', 'rank!=""'), nic_rank), '{{workload}} rank {{rank}} silent'),
            g.query(g.worst(config, s.series('fabricpulse_rank_stalled_seconds'), 'instance, workload, communicator, rank'), '{{workload}} rank {{rank}} in a collective'),
          ]) + g.mayBeNone,
          g.timeseries('Waited for, by rank', 'Share of time in which other ranks wait for a rank that has not posted its data or a receive; the twenty ranks that were waited for longest in the range.', 'percentunit', [
            g.query(g.rising(config, waited('fabricpulse_request_waited_for_peer_seconds_total', 'peer, peer_rank'), job.series('fabricpulse_request_waited_for_peer_seconds_total'), 'workload, peer, peer_rank'), '{{workload}} rank {{peer_rank}} on {{peer}}'),
            g.unchanged([job.series('fabricpulse_request_waited_for_peer_seconds_total')]),
          ]),
          g.timeseries('Waits itself, by rank', 'Share of time in which requests of a rank do not move, whatever they wait for. A straggler is waited for, and waits little; the twenty that waited longest in the range.', 'percentunit', [
            g.query(g.rising(config, waited('fabricpulse_request_waited_seconds_total', 'instance, rank'), job.series('fabricpulse_request_waited_seconds_total'), 'workload, instance, rank'), '{{workload}} rank {{rank}} on {{instance}}'),
            g.unchanged([job.series('fabricpulse_request_waited_seconds_total')]),
          ]),
        ]),
        g.row('Delay', [
          g.timeseries('In-band delay of the fastest chunks, by flow', 'Tenth percentile of two minutes: what a flow takes without a queue. One that takes long even so goes another way; the twenty flows that were slowest in the range.', 's', [
            g.query(g.worst(config, 'flow:fabricpulse_qp_owd_seconds:p10_2m' + panel, flow), '{{peer}} {{peer_device}} → {{instance}} {{device}}'),
          ]),
          g.timeseries('In-band delay of the job, p99 of its worst flow', 'One-way delay of the chunks of a flow, 99th percentile of two minutes; the flow of the job that is worst.', 's', [
            g.query('max by (workload) (%s)' % s.series('fabricpulse_qp_recent_owd_seconds', 'quantile="0.99"'), '{{workload}}'),
          ]),
          g.timeseries('In-band delay by flow, median', 'Of a pair of NICs, over one minute; the twenty flows that were slowest in the range.', 's', [
            g.query(g.worst(config, 'flow:fabricpulse_qp_owd_seconds:p50_2m' + panel, flow), '{{peer}} {{peer_device}} → {{instance}} {{device}}'),
          ]),
        ]),
      ]
    ),
  },
}
