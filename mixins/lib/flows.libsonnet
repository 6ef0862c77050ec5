// Expressions on flows: all queue pairs (or sockets) of one job from one NIC to another. What several alerts need is
// recorded (rules/flow.libsonnet): over a large fleet each of these takes long. Alerts on it have a `for`, beside which
// the lag of one evaluation does not count.
//
// The receiver measures the delay, so what is recorded of a flow has the receiver as `instance` and `device`, the sender
// as `peer` and `peer_device`, like an edge. What only the sender knows (marks, what it sends again) is swapped, and so is
// an alert, which names the sender first: there the flow can be put on another path.
local signals = import '../signals.libsonnet';
local paths = import 'paths.libsonnet';
function(config) {
  local s = signals(config),
  local p = paths(config),
  local c = config.clusterLabel,
  local flow = '%s, instance, workload, device, peer, peer_device' % c,
  local job = '%s, workload' % c,
  local nic = '%s, instance, device' % c,
  local recorded(name) = name + s.braces,

  local delay = recorded('flow:fabricpulse_qp_owd_seconds:p50_2m'),
  local floor = recorded('flow:fabricpulse_qp_owd_seconds:p10_2m'),
  local rate = recorded('flow:fabricpulse_qp_received_bytes:rate2m'),
  local nicRate = recorded('nic:fabricpulse_qp_received_bytes:rate2m'),
  local usualPeak = recorded('nic:fabricpulse_qp_received_bytes:usual_peak'),
  local congested = recorded('flow:fabricpulse_qp:congestion_signs'),
  // `instance` is the host's name (deploy/prometheus.yml). Only of few series: it is slow.
  local move(expr, to, from) = 'label_replace(%s, "%s", "$1", "%s", "(.*)")' % [expr, to, from],
  local drop(expr, label) = 'label_replace(%s, "%s", "", "", "")' % [expr, label],
  local swapped(expr) =
    local moved = move(move(move(move(move(move(expr, 'was_instance', 'instance'), 'was_device', 'device'), 'instance', 'peer'), 'device', 'peer_device'), 'peer', 'was_instance'), 'peer_device', 'was_device');
    drop(drop(moved, 'was_instance'), 'was_device'),
  local anySwapped(expr) = 'group by (%s) (%s)' % [flow, swapped(expr)],

  // What is recorded.
  // One-way delay of each flow's chunks, s; nothing of a flow without chunks. The exporter takes the quantile: from the
  // buckets it is what Prometheus takes longest for.
  delayQuantile(q):: 'max by (%s) (%s)' % [flow, s.last('fabricpulse_qp_recent_owd_seconds', 'quantile="%g"' % q)],
  receivedRate:: s.flowRates('fabricpulse_qp_received_bytes_total', flow),
  // What is usual, bytes/s: before the present could change it.
  usualRate:: 'quantile_over_time(0.5, %s[1h] offset 2m)' % rate,
  receivedRateOfDevice:: 'sum by (%s, instance, workload, device) (%s)' % [c, rate],
  // What a NIC receives of all its jobs, and the most that it usually does, bytes/s: the latter reads itself, for a day is
  // too much to read, and loses half of it in a day without such a rate. A NIC that receives as much is full; one that
  // receives far less and has slow flows is slow. What it receives while its edges are slow says nothing about what it can:
  // by rateWindow later they are known to be, and for as long after them its rate tells of them.
  receivedRateOfNic:: 'sum by (%s) (%s)' % [nic, rate],
  usualPeak::
    local slow = 'last_over_time(%s[5m])' % s.series('device:fabricpulse_edge_latency_elevated:count', 'direction="receive"');
    local learned = '(%s offset %s unless on (%s) %s)' % [nicRate, config.rateWindow, nic, slow];
    local before = '0.999 * last_over_time(%s[15m])' % usualPeak;
    // The larger of both. What was before has no name any more, so that `or` keeps both of each NIC.
    'max by (%(nic)s) (%(learned)s or on (__name__) %(before)s)' % { learned: learned, nic: nic, before: before },
  // Of the NICs with slow edges or slow flows, what they receive, bytes/s, and its share of the peak as it was before the present
  // could change it: unknown of a NIC that nobody knew then.
  slowNicRate:: recorded('nic:fabricpulse_qp_received_bytes:slow_rate'),
  slowRateOfNic(nics):: '%s and on (%s) (%s or on (%s) %s)' % [nicRate, nic, nics, nic, $.slow],
  shareOfPeak:: '%s / on (%s) %s offset %s' % [$.slowNicRate, nic, usualPeak, config.usualPeakAge],
  local ofPeak = recorded('nic:fabricpulse_qp_received_bytes:peak_ratio'),
  // Of one that receives far more than ever nobody knows what it can, but by its speed.
  // By the table of speeds, which is up to rareInterval old: a link that has become slower meanwhile is not full by it, one that has
  // become faster may be called full for as long, and so may one of a host that is new and tells no speed (seldomInterval longer).
  local ofSpeed(on, speed) = '%s / on (%s) group_left () %s >= %g' % [$.slowNicRate, on, recorded('device:fabricpulse_nic_link_speed_bytes_per_second:' + speed), config.fullRatio],
  local atSpeed = '(%s or %s)' % [ofSpeed('%s, device' % c, 'alike'), ofSpeed(nic, 'other')],
  full(nics):: '(%s >= %g <= %g or on (%s) %s) and on (%s) %s' % [ofPeak, config.fullRatio, 1 / config.fullRatio, nic, atSpeed, nic, nics],
  notFull:: '%s < %g' % [ofPeak, config.fullRatio],
  // By how much a flow is slower than the quick quarter of its job's flows: the size of messages cancels.
  quickQuarter:: 'quantile by (%s) (0.25, %s)' % [job, delay],
  local quick = recorded('workload:fabricpulse_qp_owd_seconds:quick_quarter'),
  local timesQuick(delays) = '%s / on (%s) group_left () %s' % [delays, job, quick],
  contentionScore:: timesQuick(delay),
  // 1 for a flow that is marked or resends.
  congestionSigns:: anySwapped('(%s > 0 or %s > 0)' % [s.flowRate('fabricpulse_qp_ecn_marked_total'), s.flowRate('fabricpulse_qp_retransmits_total')]),
  // Median of a job's flows that carry chunks, bytes/s.
  medianRate:: 'quantile by (%s) (0.5, %s and on (%s) %s)' % [job, rate, flow, delay],
  // Bytes/s of the flows of which more is asked: those that are slow, and those that were contended.
  local watched = recorded('flow:fabricpulse_qp_received_bytes:watched_rate'),
  local contendedOnce = 'last_over_time(%s[%s])' % [$.contended, config.nicSlowHold],
  watchedRate:: '%s and on (%s) (%s or %s)' % [rate, flow, $.slow, contendedOnce],
  // Bytes/s of a slow flow with less than that, or than itself in the hour before.
  slowFlowRate:: '%s and on (%s) %s' % [watched, flow, $.slow],
  starvedRate:: '%(slow)s < on (%(job)s) group_left () (0.9 * %(median)s) or %(slow)s and %(slow)s / %(usual)s < 0.9' % {
    job: job,
    slow: recorded('flow:fabricpulse_qp_received_bytes:slow_rate'),
    median: recorded('workload:fabricpulse_qp_received_bytes:median_rate'),
    usual: recorded('flow:fabricpulse_qp_received_bytes:usual_rate'),
  },

  // What alerts are made of.
  slow:: recorded('flow:fabricpulse_qp_owd_seconds:slow'),
  slowBesideOthers:: '%s > %g' % [timesQuick('(%s > %g)' % [delay, config.contentionDelaySeconds]), config.contentionScore],
  slowAndCongested:: '%s and on (%s) (%s or %s)' % [$.slow, flow, congested, recorded('flow:fabricpulse_qp_received_bytes:starved_rate')],
  contended:: recorded('flow:fabricpulse_qp_owd_seconds:contended'),

  // Jobs that run over a NIC that has an alert of its own: it is the news, and what it does to flows is not. Where a whole
  // network is slow, or NICs of several of its hosts, they are not the cause.
  local alerting(names, state='alertstate="firing"') = 'last_over_time(%s[%s])' % [s.series('ALERTS', 'alertname=~"%s", %s' % [names, state]), config.lastValueWindow],
  // Lanes of the NICs that such an alert names, or named lately, or that may be slow, recorded: few, also where there are many lanes.
  local alertsOfNics = 'FabricNic(Disconnected|Gone|Flapping|Lossy|Slow)|FabricMtuBlackHole',
  local lanesOfFaultyNics = recorded('lane:fabricpulse_lane_state:of_faulty_nic'),
  lanesOfFaultyNics:: lanesOfFaultyNics,
  // Also where the alert waits for its `for`: this is recorded at other moments than alerts fire, and what is read at the moment at which it
  // does must be there by then.
  faultyLanes:: 'group by (%s, instance, workload, device) (%s and on (%s) (last_over_time(%s[%s]) or %s))' % [
    c,
    s.last('fabricpulse_lane_state'),
    nic,
    s.series('ALERTS', 'alertname=~"%s", alertstate=~"pending|firing"' % alertsOfNics),
    config.laneFailoverWindow,
    recorded('device:fabricpulse_edge_latency_elevated:slowest'),
  ],
  local faulty = 'group by (%(job)s) (%(lanes)s and on (%(nic)s) (%(nics)s or %(slow)s unless on (%(network)s) %(networks)s unless on (%(network)s) %(several)s))' % {
    job: job,
    lanes: lanesOfFaultyNics,
    nic: nic,
    nics: alerting('FabricNicDisconnected|FabricNicFlapping|FabricNicLossy|FabricMtuBlackHole'),
    slow: alerting('FabricNicSlow'),
    network: '%s, network' % c,
    networks: alerting('FabricNetworkSlow', 'alertstate=~"pending|firing"'),
    several: severalSlow,
  },
  local severalSlow = 'last_over_time(%s[%s])' % [p.slowHosts, config.pathLossWindow],
  // Flows that were contended a moment ago, while NICs of several hosts of the network are slow, of these their sender or their
  // receiver: where a job has moved to other paths its flow is quick, or moves nothing, and the path is as full as before.
  // What is recorded as contended was so when it was last measured within nicSlowHold, after which these NICs are named in any case.
  // The networks of the NICs that receive flows which are or were measured to be contended.
  local contendedNetworks = recorded('device:fabricpulse_nic_network:of_contended'),
  networksOfContended:: p.inNetworkOf('group by (%s) (last_over_time(%s[%s]))' % [nic, $.contended, config.nicSlowHold]),
  local contendedLately = 'last_over_time(%s[%s])' % [$.contendedOnPaths, config.pathLossWindow],
  local stillContended = '(%(lately)s and on (%(nic)s) %(receiving)s or %(lately)s and on (%(peer)s) %(sending)s) and on (%(flow)s) %(rate)s and on (%(flow)s) %(measured)s and on (%(nic)s) (%(networks)s and on (%(network)s) %(several)s)' % {
    lately: contendedLately,
    nic: nic,
    receiving: p.receiving,
    peer: p.peer,
    sending: p.sending,
    flow: flow,
    rate: watched,
    measured: contendedOnce,
    networks: contendedNetworks,
    network: '%s, network' % c,
    several: severalSlow,
  },
  // Flows that are contended on the way that probes take as well, and not for a NIC.
  contendedOnPath:: '(%(contended)s or on (%(flow)s) %(still)s) unless on (%(job)s) %(faulty)s unless on (%(flow)s) %(offPath)s == 1' % {
    contended: $.contended,
    still: stillContended,
    job: job,
    faulty: faulty,
    flow: flow,
    offPath: slowerThanProbes,
  },
  // As recorded.
  contendedOnPaths:: recorded('flow:fabricpulse_qp_owd_seconds:contended_paths'),
  // With the network of the receiving NIC, where it is known.
  contendedInNetwork:: '%(flows)s * on (%(nic)s) group_left (network) %(networks)s or on (%(flow)s) %(flows)s' % {
    flows: $.contendedOnPaths,
    nic: nic,
    networks: contendedNetworks,
    flow: flow,
  },
  contendedPaths:: recorded('flow:fabricpulse_qp_owd_seconds:contended_in_network'),
  contendedBySender:: swapped($.contendedPaths),

  // The fastest chunks of a flow are far slower than its siblings', and nothing marks them: their delay, s. Less bandwidth
  // is what a longer way gives, too, and a few packets are sent again on every way.
  quickQuarterOfFloors:: 'quantile by (%s) (0.25, %s)' % [job, floor],
  local quickFloor = recorded('workload:fabricpulse_qp_owd_seconds:p10_quick_quarter'),
  inBandSuspects:: '%(floor)s > on (%(job)s) group_left () (%(factor)g * %(quick)s) > %(least)g unless on (%(flow)s) %(marked)s' % {
    floor: floor,
    job: job,
    quick: quickFloor,
    factor: config.contentionScore,
    least: config.contentionDelaySeconds,
    flow: flow,
    marked: anySwapped('(%s > 0)' % s.flowRate('fabricpulse_qp_ecn_marked_total')),
  },
  // 1 for those of them that are far slower than the probes between the same NICs, on whichever source port, and 0 for
  // those that are not: on one of several equal paths there is a queue that only some probes meet. Of an edge that is well a
  // large fleet exports the usual delay alone, which takes long to read of all: the slowest probes to the same NIC are more.
  local suspects = recorded('flow:fabricpulse_qp_owd_seconds:in_band_suspects'),
  local edge = '%s, instance, device, peer, peer_device' % c,
  local slowerThanProbes = recorded('flow:fabricpulse_qp_owd_seconds:slower_than_probes'),
  slowerThanProbes:: '%(suspects)s > bool on (%(edge)s) group_left () (%(ratio)g * max by (%(edge)s) (%(probes)s and on (%(edge)s) %(suspects)s or %(paths)s and on (%(edge)s) %(suspects)s)) or on (%(flow)s) %(suspects)s > bool on (%(nic)s) group_left () (%(ratio)g * max by (%(nic)s) (%(slowest)s))' % {
    suspects: suspects,
    edge: edge,
    flow: flow,
    nic: nic,
    ratio: config.inBandRatio,
    probes: s.last('fabricpulse_edge_owd_seconds', 'quantile="0.5"'),
    paths: s.last('fabricpulse_edge_path_owd_seconds', 'path="worst"'),
    slowest: s.last('fabricpulse_probe_recent_owd_seconds', 'quantile="0.99"'),
  },
  // By how much they are slower than their siblings.
  inBandSlower:: swapped('(%(suspects)s / on (%(job)s) group_left () %(quick)s and on (%(flow)s) %(compared)s == 1)' % {
    suspects: suspects,
    job: job,
    quick: quickFloor,
    flow: flow,
    compared: slowerThanProbes,
  }),

  collectiveBandwidth:: 'avg by (%s, workload, collective) (%s > 0)' % [c, s.last('fabricpulse_collective_bandwidth_bytes_per_second')],

  // Against the median of at least three jobs whose messages are of the same class of size.
  local bandwidth = recorded('workload:fabricpulse_collective_bandwidth_bytes_per_second:avg'),
  collectiveSize:: 'sum by (%(c)s, workload, collective) (rate(%(bytes)s[5m])) / sum by (%(c)s, workload, collective) (rate(%(operations)s[5m]))' % {
    c: c,
    bytes: s.series('fabricpulse_collective_bytes_total'),
    operations: s.series('fabricpulse_collective_operations_total'),
  },
  local classes = [['small', '< 1e+06'], ['medium', '>= 1e+06 < 1e+08'], ['large', '>= 1e+08']],
  local class(name, bounds) =
    local jobs = '(%s and on (%s, workload, collective) (%s %s))' % [bandwidth, c, recorded('workload:fabricpulse_collective_bytes:mean'), bounds];
    local group = '%s, collective' % c;
    'label_replace(%(jobs)s / on (%(group)s) group_left quantile by (%(group)s) (0.5, %(jobs)s) < %(ratio)g and on (%(group)s) count by (%(group)s) (%(jobs)s) >= 3, "size", "%(name)s", "", "")' % {
      jobs: jobs,
      group: group,
      ratio: config.bandwidthFleetRatio,
      name: name,
    },
  belowFleet:: std.join(' or ', [class(row[0], row[1]) for row in classes]),
}
