// The first ten seconds: what is wrong, worst first, and where.
local gpus = import '../lib/gpus.libsonnet';
local g = import '../lib/panels.libsonnet';
local suspects = import '../lib/suspects.libsonnet';
local signals = import '../signals.libsonnet';
{
  grafanaDashboards+:: {
    local config = $._config,
    local c = config.clusterLabel,
    local fleet = g.clusterMatcher(config),
    local s = signals(config, '%s=~"$%s"' % [c, c]),
    local jobs = '%s, workload=~"$workload"' % fleet,
    local bad = [{ color: 'green', value: 0 }, { color: 'red', value: 1 }],
    local counted(bad, all) = 'count(%s) or 0 * count(%s)' % [bad, all],
    local flapping = '%s >= %d' % [s.nicDisconnects(config.flapWindow), config.flapThreshold],
    local owd = s.series('fabricpulse_probe_recent_owd_seconds', 'quantile="0.99"'),
    // 0 gone, 1 well, 2 and 3 flapping.
    local state = 'max by (%(c)s, instance, device, network) (%(connected)s + 2 * (%(disconnects)s >= bool %(threshold)d))' % {
      c: c,
      connected: s.nicConnected,
      disconnects: s.nicDisconnects(config.flapWindow),
      threshold: config.flapThreshold,
    },
    local states = {
      '0': { text: 'GONE', color: 'red' },
      '1': { text: 'ok', color: 'green' },
      '2': { text: 'FLAP', color: 'orange' },
      '3': { text: 'FLAP', color: 'orange' },
    },

    'fabricpulse-now.json': g.dashboard(
      config,
      'now',
      'First ten seconds',
      'What is wrong, worst first, and where. Start here.',
      [g.variable(config, 'workload', 'Workload', 'fabricpulse_lane_state', fleet)],
      [
        g.row('Now', [
          g.stat('NICs watched', 'NICs that the mesh knows of.', 'short', [
            g.query('count(%s)' % s.nicConnected, instant=true),
          ], [{ color: 'blue', value: 1 }]),
          g.stat('NICs disconnected', 'NICs that reach none of their peers.', 'short', [
            g.query(counted(s.nicConnected + ' == 0', s.nicConnected), instant=true),
          ], bad),
          g.stat('NICs flapping', 'NICs that lost the fabric %d times or more within %s.' % [config.flapThreshold, config.flapWindow], 'short', [
            g.query(counted(flapping, s.nicConnected), instant=true),
          ], bad),
          g.stat('Slow networks', 'Networks with a NIC whose 99th percentile of one-way delay is above %g s.' % config.sloOwdSeconds, 'short', [
            g.query(counted('max by (%s, network) (%s) > %g' % [c, owd, config.sloOwdSeconds], owd), instant=true),
          ], bad),
          g.stat('Slow flows', 'Flows of jobs that are far slower than their siblings. The page Contention tells which of them wait in queues of the network.', 'short', [
            g.query(counted(
              'flow:fabricpulse_qp_owd_seconds:contention_score{%s} > %g' % [fleet, config.contentionScore],
              'flow:fabricpulse_qp_owd_seconds:contention_score{%s}' % fleet
            ), instant=true),
          ], bad),
          g.stat('Widest clock bound', 'The largest error bound of fleet time on any host.', 's', [
            g.query('max(%s)' % s.clockBound, instant=true),
          ], [{ color: 'green', value: 0 }, { color: 'red', value: config.clockBoundSeconds }]),
        ]),
        g.row('What and where', [
          g.alerts(
            config,
            'What is wrong, worst first',
            'Alerts that fire, with the time since which they do. The name leads to the runbook. FabricWatchdog alone: rules are evaluated, and nothing else fires.',
            // The most severe first, then the oldest: Prometheus keeps the order of what is put together. Words could not be sorted: info
            // comes before warning. One line where an alert has fired twice for the same thing, as for both directions of a NIC.
            std.join(' or ', [
              'sort_desc(max by (%(c)s, severity, alertname, instance, device, network, workload, peer, rank, faulty, leaf) ((time() - ALERTS_FOR_STATE{%(severity)s, alertname=~"Fabric.+", %(fleet)s}) and ignoring (alertstate) ALERTS{%(severity)s, alertstate="firing", alertname!="FabricWatchdog", %(fleet)s}))' % {
                c: c,
                fleet: g.alertMatcher(config),
                severity: severity,
              }
              for severity in ['severity="critical"', 'severity="warning"', 'severity!~"critical|warning"']
            ]) +
            // Where none does: the one that always fires, which has no label of a cluster.
            ' or on () max by (severity, alertname) ((time() - ALERTS_FOR_STATE{alertname="FabricWatchdog"}) and ignoring (alertstate) ALERTS{alertname="FabricWatchdog", alertstate="firing"})'
          ) { width:: 24, height:: 9 },
          g.matrix(
            config,
            'NICs of hosts with faults',
            'Only hosts with a NIC that is disconnected or flapping.',
            'none',
            // Of several NICs in one cell the worst: disconnected, then flapping.
            g.query('(min by (%(c)s, instance, network) (%(state)s) == 0 or max by (%(c)s, instance, network) (%(state)s)) and on (%(c)s, instance) (max by (%(c)s, instance) (%(state)s) != 1 or min by (%(c)s, instance) (%(state)s) == 0)' % { c: c, state: state }),
            'fleet',
            states=states
          ) { width:: 12, height:: 8 },
          g.stateTimeline(
            config,
            'NICs with faults',
            'Green: connected. Orange: flapping. Red: disconnected. The fifteen NICs that flapped most or were disconnected for longest within the time range.',
            state,
            g.faultyNics(config, s, 15),
            '{{instance}} {{device}}',
            s.series('fabricpulse_nic_connected'),
            states
          ) { width:: 12, height:: 8 },
          g.matrix(
            config,
            'Delay by network, worst hosts',
            'What each host receives, 99th percentile of five minutes. A red column is a rail or leaf, a red row a host.',
            's',
            g.query('max by (%(c)s, instance, network) (%(owd)s) and on (%(c)s, instance) topk(10, max by (%(c)s, instance) (%(owd)s))' % { c: c, owd: owd }),
            'paths',
            [{ color: 'green', value: null }, { color: 'yellow', value: config.sloOwdSeconds / 5 }, { color: 'red', value: config.sloOwdSeconds }]
          ) { width:: 12, height:: 8 },
          suspects(config, function(matchers) s.series('fabricpulse_fault_component', matchers)),
        ]),
        g.row('Jobs', [
          g.timeseries('Collective bandwidth, with what happened', 'Payload of one rank by duration, mean of the ranks.', 'Bps', [
            g.query('workload:fabricpulse_collective_bandwidth_bytes_per_second:avg{%s, workload=~"$workload"}' % fleet, '{{workload}} {{collective}}'),
          ]),
        ] + g.countedScatter(
          'Flows: throughput against one-way delay',
          'One dot a flow (NIC pair). A healthy flow lies lower right; a slow one stands alone, upper left.',
          'flow:fabricpulse_qp_received_bytes:rate2m{%s, workload=~"$workload"}' % fleet,
          'flow:fabricpulse_qp_owd_seconds:p50_2m{%s, workload=~"$workload"}' % fleet,
          '%s, instance, workload, device, peer, peer_device' % config.clusterLabel,
          ['throughput', 'delay'],
          ['Bps', 's'],
          'the delay of no flow is known, as without fleet time'
        ) + [gpus(config, jobs).hours { width:: 24, height:: 6 }]),
      ]
    ),
  },
}
