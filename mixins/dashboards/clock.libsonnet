// Fleet time: which hosts have it, how well, and why not.
local g = import '../lib/panels.libsonnet';
local signals = import '../signals.libsonnet';
{
  grafanaDashboards+:: {
    local config = $._config,
    local cluster = '%s=~"$%s"' % [config.clusterLabel, config.clusterLabel],
    local host = signals(config, cluster + ', instance=~"$instance"'),
    local fleet = signals(config, cluster),
    local bad = [{ color: 'green', value: 0 }, { color: 'red', value: 1 }],
    local counted(bad, all) = 'count(%s) or 0 * count(%s)' % [bad, all],
    // Of the twenty hosts with most.
    local rising(name, by, over) =
      local counter = host.series('fabricpulse_clock_' + name);
      g.rising(config, 'sum by (%s, %s) (%s)' % [config.clusterLabel, by, over % counter], counter, by),
    local events(name, by) = rising(name, by, 'increase(%s[5m])'),
    local unchanged(name) = g.unchanged([host.series('fabricpulse_clock_' + name)]),
    local quorum = 'max by (%s) (%s)' % [config.clusterLabel, fleet.last('fabricpulse_clocksync_quorum')],
    local worst(name, what='') = [g.query(g.worst(config, host.series('fabricpulse_clock_' + name), 'instance'), '{{instance}}' + what)],

    'fabricpulse-clock.json': g.dashboard(
      config,
      'clock',
      'Fleet time',
      'Which hosts have fleet time, with which error bound, and what spoils it.',
      [g.variable(config, 'instance', 'Host', 'fabricpulse_clock_synchronized', g.clusterMatcher(config))],
      [
        g.row('Now', [
          g.stat('Hosts without fleet time', 'Hosts whose clock is not synchronised.', 'short', [
            g.query(counted(host.clockSynchronized + ' == 0', host.clockSynchronized), instant=true),
          ], bad),
          g.stat('Widest bound', 'The largest error bound of fleet time on any host.', 's', [
            g.query('max(%s)' % host.clockBound, instant=true),
          ], [{ color: 'green', value: 0 }, { color: 'red', value: config.clockBoundSeconds }]),
          g.stat('Hosts suspected', 'Hosts whose stamps or whose UTC contradict the fleet.', 'short', [
            g.query(counted(host.last('fabricpulse_clock_suspect') + ' == 1', host.last('fabricpulse_clock_suspect')), instant=true),
          ], bad),
          g.stat('No coordinator', 'Hosts without a coordinator. ' +
                                   'Their fleet time is kept by their neighbours, and error bounds grow.', 'short', [
            g.query(counted(host.last('fabricpulse_clock_coordinator_up') + ' == 0', host.last('fabricpulse_clock_coordinator_up')), instant=true),
          ], bad),
          // Not how many have one: that of another fleet would make this one green.
          g.stat('Without a quorum', 'Fleets of which no coordinator had an anchor or most of the hosts in its last solve.', 'short', [
            g.query(counted(quorum + ' == 0', quorum), instant=true),
          ], bad),
          g.stat('Not reached', 'Hosts with a lease that no probes connect to the timeline.', 'short', [
            g.query('max(%s)' % fleet.last('fabricpulse_clocksync_unreached_members'), instant=true),
          ], bad),
        ]),
        g.row('Hosts', [
          g.unwell(config, 'Hosts that had no fleet time', 'The twenty hosts that were not synchronised for longest in the range.', host.series('fabricpulse_clock_synchronized'), 'instance', '{{instance}}', ['not synchronised', 'synchronised']),
          g.unwell(config, 'Hosts that had no coordinator', 'The twenty hosts that none answered for longest in the range.', host.series('fabricpulse_clock_coordinator_up'), 'instance', '{{instance}}', ['none answers', 'answers']),
          g.unwell(config, 'Hosts that were suspected', 'Their stamps, or their UTC, contradicted the fleet; the twenty that did for longest in the range.', host.series('fabricpulse_clock_suspect'), 'instance', '{{instance}}', ['well', 'suspected'], 0),
          g.unwell(config, 'Coordinators without a quorum', 'Their last solve had neither an anchor nor most of the hosts.', host.series('fabricpulse_clocksync_quorum'), 'instance', '{{instance}}', ['no quorum', 'quorum']),
          g.timeseries('Error bound', 'Half width of the interval that holds the true time: a guarantee. The twenty hosts that were worst in the range.', 's', worst('error_bound_seconds', ' hard bound')),
          g.timeseries('Estimated error', 'What fleet time is likely off by, where that is known: nothing is promised of it. The twenty hosts that were worst in the range.', 's', worst('estimated_error_seconds', ' estimated error')),
          g.timeseries('Clock offset', 'Fleet time minus the clock of the host; negative: the host is fast. The twenty largest of the range.', 's', worst('offset_seconds')),
          g.timeseries('Still to be slewed', 'The last correction minus fleet time as published; the twenty largest of the range.', 's', worst('slew_seconds')),
          g.timeseries('Hosts by status', 'unknown, synchronized, holdover (no fresh corrections), disrupted.', 'none', [
            g.query('sum by (status) (%s)' % host.series('fabricpulse_clock_status'), '{{status}}'),
          ]),
        ]),
        g.row('Causes of lost accuracy', [
          g.timeseries('Steps of host clocks', 'Per five minutes. Fleet time does not notice them; whatever else uses CLOCK_REALTIME does.', 'short', [
            g.query(events('host_steps_total', 'instance'), '{{instance}}'),
            unchanged('host_steps_total'),
          ]),
          g.timeseries('Fleet time found wrong', 'How often it was set anew, by what detected it; per five minutes.', 'short', [
            g.query(events('contradictions_total', 'instance, source'), '{{instance}} {{source}}'),
            unchanged('contradictions_total'),
          ]),
          g.timeseries('Edges by quality', 'Of the fits of the last round, over all hosts.', 'none', [
            g.query('sum by (quality) (%s)' % host.series('fabricpulse_clock_edges'), '{{quality}}'),
          ]),
          g.timeseries('Windows cut', 'Estimation windows that a clock step or a route change has cut, per five minutes.', 'short', [
            g.query('sum (increase(%s[5m]))' % host.series('fabricpulse_clock_edge_steps_total'), 'clock step'),
            g.query('sum (increase(%s[5m]))' % host.series('fabricpulse_clock_route_changes_total'), 'route change'),
          ]),
          g.timeseries('Samples lost', 'Probe samples that were overwritten before the sidecar read them.', 'short', [
            g.query(rising('samples_lost_total', 'instance', 'rate(%s[$__rate_interval])'), '{{instance}}'),
            unchanged('samples_lost_total'),
          ]),
          g.timeseries('Reports that failed', 'By reason, over all hosts.', 'reqps', [
            g.query('sum by (reason) (rate(%s[$__rate_interval]))' % host.series('fabricpulse_clock_report_errors_total'), '{{reason}}'),
          ]),
        ]),
        g.row('Coordinator', [
          g.timeseries('Solve', 'How long the last solve of the fleet took.', 's', [
            g.query(fleet.series('fabricpulse_clocksync_solve_seconds'), '{{instance}}'),
          ]),
          g.timeseries('Residual', 'Median over edges of what the solve leaves unexplained, and what edges measure beside what all others say (held out).', 's', [
            g.query(fleet.series('fabricpulse_clocksync_residual_seconds'), '{{instance}}'),
            g.query(fleet.series('fabricpulse_clocksync_held_out_residual_seconds'), 'held out {{share}} {{instance}}'),
          ]),
          g.timeseries('Edges', 'In the last solve, and those with an outlying residual.', 'none', [
            g.query(fleet.series('fabricpulse_clocksync_edges'), 'all {{instance}}'),
            g.query(fleet.series('fabricpulse_clocksync_outlier_edges'), 'outliers {{instance}}'),
          ]),
          g.timeseries('Failures', 'Solves that failed, and reports that came as datagrams, by what became of them.', 'short', [
            g.query('sum (rate(%s[$__rate_interval]))' % fleet.series('fabricpulse_clocksync_solve_failures_total'), 'solves failed'),
            g.query('sum by (outcome) (rate(%s[$__rate_interval]))' % fleet.series('fabricpulse_clocksync_datagrams_total'), 'reports {{outcome}}'),
          ]),
        ]),
      ]
    ),
  },
}
