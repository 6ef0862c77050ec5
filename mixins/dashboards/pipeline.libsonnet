// The pipeline itself: whether those who watch the fabric are well.
local g = import '../lib/panels.libsonnet';
local signals = import '../signals.libsonnet';
{
  grafanaDashboards+:: {
    local config = $._config,
    local cluster = '%s=~"$%s"' % [config.clusterLabel, config.clusterLabel],
    local s = signals(config, cluster + ', instance=~"$instance"'),
    local up = s.series('up', config.jobSelector),
    local bad = [{ color: 'green', value: 0 }, { color: 'red', value: 1 }],
    local counted(bad, all) = 'count(%s) or 0 * count(%s)' % [bad, all],
    local frontEnd = {
      c: config.clusterLabel,
      connected: s.series('fabricpulse_front_end_connected'),
      lost: s.series('fabricpulse_front_end_disconnects_total'),
    },
    local unwell(name, is) = [g.query(counted('%s == %d' % [s.last(name), is], s.last(name)), instant=true)],
    // The twenty that rose most in the range.
    local unchanged(names) = g.unchanged([s.series('fabricpulse_' + n) for n in names]),
    local rising(name, by) =
      g.rising(config, 'sum by (%s, %s) (rate(%s[$__rate_interval]))' % [config.clusterLabel, by, s.series(name)], s.series(name), by),

    'fabricpulse-pipeline.json': g.dashboard(
      config,
      'pipeline',
      'Pipeline',
      'Daemons, probes, membership, alerts on their way: is what watches the fabric well?',
      [g.variable(config, 'instance', 'Host', 'fabricpulse_build_info', g.clusterMatcher(config))],
      [
        g.row('Now', [
          g.stat('Daemons', 'Daemons that Prometheus knows of.', 'short', [g.query('count(%s)' % up, instant=true)], [{ color: 'blue', value: 1 }]),
          g.stat('Daemons silent', 'Their last scrape has failed.', 'short', [g.query(counted(up + ' == 0', up), instant=true)], bad),
          g.stat('Config refused', 'Daemons that could not load their configuration; the old one is in force.', 'short', unwell('fabricpulse_config_last_reload_successful', 0), bad),
          g.stat('Not a member', 'Hosts that are not in their own membership: they probe nothing.', 'short', unwell('fabricpulse_mesh_member', 0), bad),
          g.stat('Membership not read', 'Hosts that could not read the membership.', 'short', unwell('fabricpulse_mesh_membership_success', 0), bad),
          g.stat('Membership held back', 'Hosts that keep the old membership, as the new one is much shorter.', 'short', unwell('fabricpulse_mesh_membership_held', 1), bad),
          g.stat('Pushes refused', 'Pairs of a host and an Alertmanager that did not take the last push.', 'short', unwell('fabricpulse_alert_push_success', 0), bad),
          g.stat('Collectors failing', 'Collectors whose last run failed.', 'short', unwell('fabricpulse_scrape_collector_success', 0), bad),
          g.stat('Series left out', 'Samples that the cap of an exposition has cut.', 'short', [
            g.query('sum(%s)' % s.last('fabricpulse_exporter_dropped_samples'), instant=true),
          ], bad),
          g.stat('Not real-time', 'Hosts on which the probe engine competes with everything else.', 'short', unwell('fabricpulse_probe_realtime', 0), [{ color: 'green', value: 0 }, { color: 'yellow', value: 1 }]),
          g.stat('NICs unknown', 'NICs of which the mesh cannot tell whether they are connected.', 'short', [
            g.query(counted(s.last('fabricpulse_nic_state', 'state="unknown"') + ' == 1', s.last('fabricpulse_nic_state', 'state="unknown"')), instant=true),
          ], [{ color: 'green', value: 0 }, { color: 'yellow', value: 1 }]),
          g.stat('Hosts reporting', 'Hosts whose mesh exporters send evidence to the diagnosis.', 'short', [
            g.query('max(%s)' % s.last('fabricpulse_diagnosis_hosts'), instant=true),
          ], [{ color: 'blue', value: 1 }]),
        ]),
        g.row('Probes', [
          g.timeseries('Engine stalled', "Share of time that counts as nobody's silence, because the host held the engine up; only hosts that did.", 'percentunit', [
            g.query(rising('fabricpulse_probe_stalled_seconds_total', 'instance'), '{{instance}}'),
            unchanged(['probe_stalled_seconds_total']),
          ]),
          g.timeseries('Engine late, p99', 'How late the engine woke for its ticks, over all hosts; faults are found as much later.', 's', [
            g.query('histogram_quantile(0.99, sum by (le) (rate(%s[$__rate_interval])))' % s.series('fabricpulse_probe_lateness_seconds_bucket'), 'late'),
          ]),
          g.timeseries('Engine CPU', 'CPU time a second; the twenty largest of the range.', 'percentunit', [
            g.query('rate(%(cpu)s[$__rate_interval]) and on (%(c)s, instance) topk(20, increase(%(cpu)s[$__range] @ end()))' % { cpu: s.series('fabricpulse_probe_cpu_seconds_total'), c: config.clusterLabel }, '{{instance}}'),
          ]),
          g.timeseries('Probes not taken, packets/s', 'Packets that arrived and were thrown away, by reason; overflows of the receive queue.', 'short', [
            g.query(rising('fabricpulse_probes_dropped_total', 'reason'), '{{reason}}'),
            g.query(rising('fabricpulse_probe_receive_overflows_total', 'instance'), 'overflow {{instance}}'),
            unchanged(['probes_dropped_total', 'probe_receive_overflows_total']),
          ]),
          g.timeseries('Probes not sent, packets/s', 'Refused by the kernel, and transmit stamps that never came.', 'short', [
            g.query(rising('fabricpulse_probe_send_errors_total', 'instance'), 'refused {{instance}}'),
            g.query(rising('fabricpulse_probe_tx_stamps_lost_total', 'instance'), 'no stamp {{instance}}'),
            unchanged(['probe_send_errors_total', 'probe_tx_stamps_lost_total']),
          ]),
          g.timeseries('Members known', 'Smallest and largest membership of any host: they should be one line.', 'none', [
            g.query('min(%s)' % s.series('fabricpulse_mesh_members'), 'least'),
            g.query('max(%s)' % s.series('fabricpulse_mesh_members'), 'most'),
          ]),
        ]),
        g.row('Hosts', [
          g.unwell(config, 'Hosts that were no members', 'The twenty that were not in their own membership for longest in the range: they probed nothing.', s.series('fabricpulse_mesh_member'), 'instance', '{{instance}}', ['no member', 'member']),
          g.stateTimeline(
            config,
            'Front-end network',
            'The twenty hosts that it was lost to most in the range. Red: no server on it answers. Orange: none did within the last quarter of an hour, as is known once it is back.',
            '%s * (1 + (increase(%s[15m]) > bool 0))' % [frontEnd.connected, frontEnd.lost],
            {
              on: '%s, instance' % config.clusterLabel,
              series: 'topk(20, sum by (%(c)s, instance) (1 - avg_over_time(%(connected)s[$__range] @ end()) + (increase(%(lost)s[$__range] @ end()) or 0 * avg_over_time(%(connected)s[$__range] @ end()))) > 0)' % frontEnd,
            },
            '{{instance}}',
            frontEnd.connected,
            {
              '0': { text: 'lost', color: 'red' },
              '1': { text: 'connected', color: 'green' },
              '2': { text: 'was lost', color: 'orange' },
            }
          ) { width:: 12, height:: 8 },
        ]),
        g.row('Alerts on their way', [
          g.timeseries('Pushes', 'Pushes to Alertmanagers a second, over all hosts.', 'reqps', [
            g.query('sum by (alertmanager) (rate(%s[$__rate_interval]))' % s.series('fabricpulse_alert_pushes_total'), '{{alertmanager}}'),
          ]),
          g.timeseries('Pushes not taken', 'By reason.', 'reqps', [
            g.query(rising('fabricpulse_alert_push_failures_total', 'alertmanager, reason'), '{{alertmanager}} {{reason}}'),
            unchanged(['alert_push_failures_total']),
          ]),
          g.timeseries('Events lost', 'Events of the mesh that came faster than they could be taken.', 'short', [
            g.query(rising('fabricpulse_mesh_events_dropped_total', 'instance'), '{{instance}}'),
            unchanged(['mesh_events_dropped_total']),
          ]),
          g.timeseries('Diagnosis', 'How long the last diagnosis took.', 's', [
            g.query(s.series('fabricpulse_diagnosis_duration_seconds'), '{{instance}}'),
          ]),
        ]),
        g.row('Daemons', [
          g.unwell(config, 'Daemons that did not answer', 'The twenty whose scrapes failed for longest in the range.', up, 'job, instance', '{{job}} {{instance}}', ['no answer', 'answers']),
          g.unwell(config, 'Collectors that failed', 'The twenty that failed for longest in the range.', s.series('fabricpulse_scrape_collector_success'), 'job, instance, collector', '{{job}} {{instance}} {{collector}}', ['fails', 'works']),
          g.table(config, 'Daemons, the longest unseen', 'Of the last day, by the time since they were last scraped: at most some two minutes of those that are.', 's', [
            g.query('topk(100, time() - max by (%(c)s, job, instance, daemon) (%(seen)s))' % {
              c: config.clusterLabel,
              seen: 'daemon:fabricpulse_build_info:last_seen_timestamp_seconds{%s, instance=~"$instance"}' % g.clusterMatcher(config),
            }),
          ], [['daemon', 'daemon'], ['instance', 'host'], ['job', 'job'], ['Value', 'since']]),
          g.table(config, 'Targets without metrics of fabricpulse', 'They answer, and another program is on this port, or relabelling drops its metrics.', 'none', local without = '%(up)s == 1 unless on (%(c)s, job, instance) %(info)s' % { up: up, c: config.clusterLabel, info: s.last('fabricpulse_build_info') }; [
            g.query('topk(100, %s)' % without),
            g.noneOf(up + ' == 1', without, 'job', 'those that answer'),
          ], [['job', 'job'], ['instance', 'host']], ['Value']),
          g.table(config, 'Versions', 'How many daemons are of which version; metrics: what the rules can read of them.', 'none', [
            g.query('count by (daemon, version, metrics_version) (%s)' % s.last('fabricpulse_build_info')),
          ], [['daemon', 'daemon'], ['version', 'version'], ['metrics_version', 'metrics'], ['Value', 'daemons']]),
          g.timeseries('Samples left out, by family', 'What the cap of an exposition has cut; the twenty with most in the range.', 'short', [
            g.query(g.worst(config, s.series('fabricpulse_exporter_dropped_samples', 'family!=""'), 'job, instance, family'), '{{job}} {{instance}} {{family}}'),
            local all = s.series('fabricpulse_exporter_dropped_samples', 'family=""');
            g.allZero(all, 'max_over_time(%s[$__range] @ end()) > 0' % all),
          ]) + g.mayBeNone,
          g.timeseries('Responses', 'By status code, over all daemons; 401 and 403 are requests without valid credentials.', 'reqps', [
            g.query('sum by (code) (rate(%s[$__rate_interval]))' % s.series('fabricpulse_http_responses_total'), '{{code}}'),
          ]),
          g.timeseries('Connections ended or refused', 'By reason: who was late, or had to make room.', 'short', [
            g.query(rising('fabricpulse_http_connections_closed_total', 'reason'), '{{reason}}'),
            unchanged(['http_connections_closed_total']),
          ]),
          g.timeseries('Collectors', 'How long they take; the ten slowest of the range.', 's', [
            g.query(g.worst(config, s.series('fabricpulse_scrape_collector_duration_seconds'), 'job, instance, collector', 10), '{{job}} {{instance}} {{collector}}'),
          ]),
          g.timeseries('Samples', 'Size of the expositions; a cap cuts them. The twenty largest of the range.', 'short', [
            g.query(g.worst(config, s.series('fabricpulse_exporter_samples'), 'job, instance'), '{{job}} {{instance}}'),
          ]),
        ]),
      ]
    ),
  },
}
