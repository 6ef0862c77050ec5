// Who waits for whom in the network: flows of jobs that are held up, what they share, and what NICs say of it.
local congestion = import '../lib/congestion.libsonnet';
local gpus = import '../lib/gpus.libsonnet';
local g = import '../lib/panels.libsonnet';
local signals = import '../signals.libsonnet';
{
  grafanaDashboards+:: {
    local config = $._config,
    local c = config.clusterLabel,
    local fleet = g.clusterMatcher(config),
    local chosen = '%s=~"$%s"' % [c, c],
    local host = signals(config, chosen + ', instance=~"$instance"'),
    local jobs = '%s, workload=~"$workload"' % fleet,
    local flows = '{%s, instance=~"$instance"}' % jobs,
    local flow = 'instance, workload, device, peer, peer_device',
    local arrow = '{{workload}}: {{peer}} {{peer_device}} → {{instance}} {{device}}',
    // Of a network that is not known, also where one is chosen.
    local contended = 'flow:fabricpulse_qp_owd_seconds:contended_in_network{%s, instance=~"$instance", network=~"$network|"}' % jobs,
    local delays = 'flow:fabricpulse_qp_owd_seconds:p50_2m' + flows,
    local slow = 'flow:fabricpulse_qp_owd_seconds:slow' + flows,
    local bad = [{ color: 'green', value: 0 }, { color: 'red', value: 1 }],
    // 0 only where delays of flows are known at all.
    local counted(bad) = '%s or 0 * count(%s)' % [bad, delays],
    local none(series, measured) = g.query('0 * count(%s) unless on () count(last_over_time(%s[$__range] @ end()))' % [measured, series], 'none of what is measured'),

    'fabricpulse-contention.json': g.dashboard(
      config,
      'contention',
      'Contention',
      'Which flows of jobs wait in queues, which jobs and senders meet there, and what NICs say of it.',
      [
        g.variable(config, 'workload', 'Workload', 'fabricpulse_lane_state', fleet),
        g.variable(config, 'instance', 'Receiving host', 'fabricpulse_nic_connected', fleet),
        g.variable(config, 'network', 'Network', 'fabricpulse_nic_connected', fleet),
      ],
      [
        g.row('Now', [
          g.stat('Flows contended', 'Flows of jobs that are held up in a queue while their siblings are not, and lose bandwidth or are marked.', 'short', [
            g.query(counted('count(%s)' % contended), instant=true),
          ], bad),
          g.stat('Jobs contended', 'Jobs with such a flow. More than one in a network: they may share links.', 'short', [
            g.query(counted('count(group by (%s, workload) (%s))' % [c, contended]), instant=true),
          ], bad),
          g.stat('Incasts', 'NICs at which %d slow flows of a job meet.' % config.incastSenders, 'short', [
            g.query(counted('count(count by (%s, instance, device, workload) (%s) >= %d)' % [c, slow, config.incastSenders]), instant=true),
          ], bad),
          g.stat('GPUs that wait', 'For the network, of all jobs.', 'short', [
            g.query('sum(workload:fabricpulse_gpus:lost{%s}) or 0 * count(workload:fabricpulse_collective_bandwidth_bytes_per_second:avg{%s})' % [jobs, jobs], instant=true),
          ], bad),
          g.stat('Flows measured', 'Flows whose delay is known; without any nothing above is.', 'short', [
            g.query('count(%s)' % delays, instant=true),
          ], [{ color: 'blue', value: 1 }]),
        ]),
        g.row('Flows', [
          g.table(config, 'Contended flows, the slowest first', 'By how much a flow is slower than the quick quarter of its job. The sender can put it on another path.', 'none', [
            g.query('topk(50, max by (%s, %s, network) (%s))' % [c, flow, contended]),
          ], [['workload', 'workload'], ['peer', 'from host'], ['peer_device', 'from NIC'], ['instance', 'to host'], ['device', 'to NIC'], ['network', 'network'], ['Value', 'score']]) { width:: 24 },
          g.timeseries('Contention score of flows', 'Above %g a flow counts as slow; the twenty that were worst in the range.' % config.contentionScore, 'none', [
            g.query(g.worst(config, 'flow:fabricpulse_qp_owd_seconds:contention_score' + flows, flow), arrow),
          ]),
          g.timeseries('Delay of slow flows, median', 'One-way delay of the chunks of those that count as slow; the twenty that were slowest in the range.', 's', [
            g.query('%s and on (%s, %s) %s' % [delays, c, flow, g.worst(config, slow, flow)], arrow),
            none(slow, delays),
          ]),
        ]),
        g.row('What they share', [
          g.timeseries('Jobs with contended flows, by network', 'More than one at a time: they may share links of that network.', 'short', [
            g.query('count by (network) (group by (%s, network, workload) (%s))' % [c, contended], '{{network}}'),
            none(contended, delays),
          ]),
          g.timeseries('Slow flows into one NIC', 'How many flows of a job into a NIC are slow together; from %d on it is an incast. The twenty NICs with most in the range.' % config.incastSenders, 'short', [
            g.query('count by (%(key)s) (%(slow)s) and on (%(key)s) topk(20, count by (%(key)s) (count_over_time(%(slow)s[$__range] @ end())))' % {
              key: c + ', instance, device, workload',
              slow: slow,
            }, '{{workload}}: {{instance}} {{device}}'),
            none(slow, delays),
          ]),
          g.timeseries('NICs with slow probes, by network', 'NICs many of whose edges are far above their baseline. All of a network: a leaf, a spine or a job that fills it; one: the NIC.', 'short', [
            g.query('count by (network) (group by (%s, instance, device, network) (device:fabricpulse_edge_latency_elevated:count{%s, network=~"$network"}))' % [c, fleet], '{{network}}'),
            none('device:fabricpulse_edge_latency_elevated:count{%s, network=~"$network"}' % fleet, 'network:fabricpulse_nic_connected:count{%s, network=~"$network"}' % fleet),
          ]),
          g.timeseries('Share of the usual peak', 'What a NIC with slow edges or flows receives, of the most that it usually does: about 1 is full, far below is slow. The twenty with most in the range.', 'percentunit', [
            g.query(g.worst(config, 'nic:fabricpulse_qp_received_bytes:peak_ratio{%s, instance=~"$instance"}' % fleet, 'instance, device'), '{{instance}} {{device}}'),
          ]) + { fieldConfig+: { defaults+: { noValue: 'None was slow in this range, or its peak was not known ' + config.usualPeakAge + ' before' } } },
        ]),
        g.row('What NICs say', [
          congestion(config, host).grown,
          congestion(config, host).stopped,
        ]),
        g.row('What it costs', [
          gpus(config, jobs).overTime,
          gpus(config, jobs).hours,
        ]),
      ]
    ),
  },
}
