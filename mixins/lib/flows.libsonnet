// Expressions on flows: all queue pairs (or sockets) of one job from one NIC to another. What several alerts need is
// recorded (rules/flow.libsonnet): over a large fleet each of these takes long. Alerts on it have a `for`, beside which
// the lag of one evaluation does not count.
local signals = import '../signals.libsonnet';
function(config) {
  local s = signals(config),
  local c = config.clusterLabel,
  local flow = '%s, instance, workload, device, peer, peer_device' % c,
  local job = '%s, workload' % c,
  local recorded(name) = name + s.braces,

  local delay = recorded('flow:fabricpulse_qp_owd_seconds:p50_2m'),
  local floor = recorded('flow:fabricpulse_qp_owd_seconds:p10_2m'),
  local score = recorded('flow:fabricpulse_qp_owd_seconds:contention_score'),
  local rate = recorded('flow:fabricpulse_qp_sent_bytes:rate2m'),
  local congested = recorded('flow:fabricpulse_qp:congestion_signs'),

  // What is recorded.
  // One-way delay of each flow's chunks, s. An exporter has one histogram of a flow: its buckets need no sum, and to record
  // their rates for both quantiles costs more than to take them twice.
  delayQuantile(q):: 'max by (%s) (histogram_quantile(%g, %s))' % [flow, q, s.flowRate('fabricpulse_qp_owd_seconds_bucket')],
  sentRate:: s.flowRates('fabricpulse_qp_sent_bytes_total', flow),
  // What is usual, bytes/s: before the present could change it.
  usualRate:: 'quantile_over_time(0.5, %s[1h] offset 2m)' % rate,
  sentRateOfDevice:: 'sum by (%s, instance, workload, device) (%s)' % [c, rate],
  // By how much a flow is slower than the quick quarter of its job's flows: the size of messages cancels.
  contentionScore:: '%(delay)s / on (%(job)s) group_left quantile by (%(job)s) (0.25, %(delay)s)' % { delay: delay, job: job },
  // 1 for a flow that is marked, resends, or has less bandwidth than its job's median flow or itself in the hour before.
  congestionSigns:: 'group by (%(flow)s) (%(marked)s > 0 or %(resent)s > 0 or %(rate)s < on (%(job)s) group_left () (0.9 * quantile by (%(job)s) (0.5, %(rate)s)) or %(rate)s < 0.9 * %(usual)s)' % {
    flow: flow,
    job: job,
    rate: rate,
    usual: recorded('flow:fabricpulse_qp_sent_bytes:usual_rate'),
    marked: s.flowRate('fabricpulse_qp_ecn_marked_total'),
    resent: s.flowRate('fabricpulse_qp_retransmits_total'),
  },

  // What alerts are made of.
  slow:: '(%s > %g and on (%s) %s > %g)' % [score, config.contentionScore, flow, delay, config.contentionDelaySeconds],
  slowAndCongested:: '%s and on (%s) %s' % [$.slow, flow, congested],
  contended:: recorded('flow:fabricpulse_qp_owd_seconds:contended'),

  // The fastest chunks of a flow are far slower than its siblings', and nothing says congestion: their delay, s.
  inBandSuspects:: '%(floor)s > on (%(job)s) group_left () (%(factor)g * quantile by (%(job)s) (0.25, %(floor)s)) > %(least)g unless on (%(flow)s) %(congested)s' % {
    floor: floor,
    job: job,
    factor: config.contentionScore,
    least: config.contentionDelaySeconds,
    flow: flow,
    congested: congested,
  },
  // 1 for those of them that are far slower than the probes between the same NICs, 0 for those that are not. The edge's
  // own labels say peer -> device; swapped they say device -> peer: `way` tells which edge it was compared with. `instance`
  // is the host's name (deploy/prometheus.yml). Suspects are swapped and not edges: they are few.
  local suspects = recorded('flow:fabricpulse_qp_owd_seconds:in_band_suspects'),
  local edge = '%s, instance, device, peer, peer_device' % c,
  local move(expr, to, from) = 'label_replace(%s, "%s", "$1", "%s", "(.*)")' % [expr, to, from],
  local swapped(expr) =
    move(move(move(move(move(move(expr, 'was_instance', 'instance'), 'was_device', 'device'), 'instance', 'peer'), 'device', 'peer_device'), 'peer', 'was_instance'), 'peer_device', 'was_device'),
  local way(expr, name) = 'label_replace(%s, "way", "%s", "", "")' % [expr, name],
  slowerThanProbes:: '(%(receive)s or %(send)s) > bool on (%(edge)s) group_left () (%(ratio)g * max by (%(edge)s) (%(probes)s))' % {
    receive: way(suspects, 'receive'),
    send: way(swapped(suspects), 'send'),
    edge: edge,
    ratio: config.inBandRatio,
    probes: s.last('fabricpulse_edge_owd_seconds', 'quantile="0.5"'),
  },
  // By how much they are slower than their siblings; slower than all edges that are known of, of one at least.
  inBandSlower::
    local compared(name) = s.series('flow:fabricpulse_qp_owd_seconds:slower_than_probes', 'way="%s"' % name);
    '%(suspects)s / on (%(job)s) group_left quantile by (%(job)s) (0.25, %(floor)s) and on (%(flow)s) (min by (%(flow)s) (%(receive)s or %(send)s) == 1)' % {
      suspects: suspects,
      job: job,
      floor: floor,
      flow: flow,
      receive: compared('receive'),
      send: swapped(compared('send')),
    },

  collectiveBandwidth:: 'avg by (%s, workload, collective) (%s > 0)' % [c, s.last('fabricpulse_collective_bandwidth_bytes_per_second')],

  // Against the median of at least three jobs whose messages are of the same class of size.
  local size = 'sum by (%(c)s, workload, collective) (rate(%(bytes)s[5m])) / sum by (%(c)s, workload, collective) (rate(%(operations)s[5m]))' % {
    c: c,
    bytes: s.series('fabricpulse_collective_bytes_total'),
    operations: s.series('fabricpulse_collective_operations_total'),
  },
  local classes = [['small', 0, 1e6], ['medium', 1e6, 1e8], ['large', 1e8, 1e15]],
  local class(name, low, high) =
    local jobs = '(%s and on (%s, workload, collective) (%s >= %d < %d))' % [$.collectiveBandwidth, c, size, low, high];
    local group = '%s, collective' % c;
    'label_replace(%(jobs)s / on (%(group)s) group_left quantile by (%(group)s) (0.5, %(jobs)s) < %(ratio)g and on (%(group)s) count by (%(group)s) (%(jobs)s) >= 3, "size", "%(name)s", "", "")' % {
      jobs: jobs,
      group: group,
      ratio: config.bandwidthFleetRatio,
      name: name,
    },
  belowFleet:: std.join(' or ', [class(row[0], row[1], row[2]) for row in classes]),
}
