// The watcher watched: exporters, remediation, and the path of an alert itself.
local lib = import '../lib/alerts.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    groups+: lib.groups(config, 'pipeline', [
      // max_over_time: one failed scrape is no alert, and one good scrape ends it.
      lib.alert(
        config,
        'FabricExporterDown',
        'warning',
        'exporter',
        'daemon:fabricpulse_up:down' + s.braces,
        'A fabricpulse daemon does not answer Prometheus.',
        '{{ $labels.job }} of {{ $labels.instance }} has not answered a scrape for ' + config.exporterDownFor + '; what it watches is not watched.',
        { paced: true }
      ),
      // Each good scrape ends FabricExporterDown, and the last value bridges each failed one: what is scraped seldom looks well.
      lib.alert(
        config,
        'FabricScrapesFailing',
        'warning',
        'exporter',
        s.scrapesFailing,
        'Scrapes of a fabricpulse daemon fail again and again.',
        'Prometheus had an answer of {{ $labels.job }} of {{ $labels.instance }} now and then, and none in between ({{ $value | printf "%.0f" }} changes within ' + config.unsteadyWindow + '): its alerts come late, and its rates are wrong.',
        { seldom: true }
      ),
      // Of each cluster none of whose targets answers; of all where there is no such, which says also that `selector`
      // fits nothing, which silences every other alert.
      lib.alert(
        config,
        'FabricNoData',
        'critical',
        'exporter',
        '(%(up)s == 0) + 1 or absent_over_time(%(info)s[%(window)s]) unless on () max(%(up)s) == 0' % {
          // Recorded: whether any of a cluster answers.
          up: 'cluster:fabricpulse_up:max' + s.braces,
          info: s.series('fabricpulse_build_info'),
          window: config.lastValueWindow,
        },
        'The rules find no data of any fabricpulse daemon.',
        'No fabricpulse daemon{{ with $labels.%s }} of {{ . }}{{ end }} has been scraped for more than ' % config.clusterLabel + config.noDataFor + ', or the selector of the rules matches none; no other alert of fabricpulse can fire ({{ $value }}).',
        // A new Prometheus evaluates rules before it has scraped anything.
        { 'for': config.noDataFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricCollectorFailing',
        'warning',
        'exporter',
        s.again('fabricpulse_scrape_collector_success', 0),
        'A collector of an exporter keeps failing.',
        'Collector {{ $labels.collector }} of {{ $labels.job }} on {{ $labels.instance }} fails; its log says why.',
        { 'for': config.collectorFailingFor, rare: true }
      ),
      lib.alert(
        config,
        'FabricSamplesDropped',
        'warning',
        'exporter',
        s.last('fabricpulse_exporter_dropped_samples', 'family!=""') + ' > 0',
        'An exporter leaves samples out because it has reached its sample cap.',
        '{{ $labels.job }} of {{ $labels.instance }} drops {{ $value | printf "%.0f" }} samples of {{ $labels.family }}: its sample cap is too low for this host.',
        { 'for': config.collectorFailingFor, rare: true }
      ),
      lib.alert(
        config,
        'FabricRemediationFailed',
        'critical',
        'remediation',
        'increase(%s[%s]) > 0' % [
          s.series('fabricpulse_remediation_actions_total', 'outcome=~"failed|refused|expired|unknown|rolled_back"'),
          config.remediationFailedWindow,
        ],
        'An automatic action did not do what it should.',
        'Action {{ $labels.action }} of the remediation receiver {{ $labels.instance }} ended as {{ $labels.outcome }}; `fabricpulse remediation journal` has the details. An operator must look.'
      ),
      lib.alert(
        config,
        'FabricRemediationBreakerTripped',
        'critical',
        'remediation',
        s.last('fabricpulse_remediation_breaker_tripped') + ' == 1',
        'Automatic actions have stopped themselves.',
        'The {{ $labels.direction }} breaker of the remediation receiver {{ $labels.instance }} has tripped: more hosts at once than it may touch. Nothing is done until an operator resets it (`fabricpulse remediation resume`).'
      ),
      lib.alert(
        config,
        'FabricRemediationRuleStopped',
        'critical',
        'remediation',
        s.last('fabricpulse_remediation_rule_stopped') + ' == 1',
        'A rule of remediation has stopped itself.',
        'The rule of {{ $labels.rule }} only observes ({{ $value }}): jobs stalled after its last failovers, or none of them has a proven recovery. An operator must look (`fabricpulse remediation actions`) and resume.'
      ),
      lib.alert(
        config,
        'FabricRemediationNeedsOperator',
        'warning',
        'remediation',
        s.last('fabricpulse_remediation_problem', 'code=~"adoption_full|agents_gone|drain_failed|manual|not_kept|not_returned|rebalancing_stopped|result_unknown|rollback_failed|too_many_alerts"') + ' == 1',
        'Remediation waits for an operator.',
        'The receiver {{ $labels.instance }} has the problem {{ $labels.code }} ({{ $value }}), which may not end by itself: `fabricpulse remediation status` says what it is about.',
        { 'for': config.agentLostFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricRemediationStalled',
        'critical',
        'remediation',
        '%s > %g' % [s.last('fabricpulse_remediation_heartbeat_age_seconds'), config.remediationStalledSeconds],
        'The remediation receiver answers but decides nothing.',
        'The reconciler of {{ $labels.instance }} ended its last cycle {{ $value | humanizeDuration }} ago.'
      ),
      // Gone from discovery, too: a target that is not there any more has no `up`.
      lib.alert(
        config,
        'FabricExporterGone',
        'warning',
        'exporter',
        local daemon = '%s, job, instance, daemon' % config.clusterLabel;
        'daemon:fabricpulse_build_info:last_seen_timestamp_seconds%s unless on (%s) last_over_time(%s[%s]) unless on (%s, job, instance) %s' % [
          s.braces,
          daemon,
          s.series('fabricpulse_build_info'),
          config.exporterGoneFor,
          config.clusterLabel,
          s.last('up', config.jobSelector),
        ],
        'A fabricpulse daemon is not scraped any more.',
        "The {{ $labels.daemon }} daemon of {{ $labels.instance }} has left Prometheus' targets within the last day (last seen {{ $value | humanizeTimestamp }}); what it watches is not watched.",
        { keep_firing_for: config.exporterDownFor, rare: true }
      ),
      lib.alert(
        config,
        'FabricExporterEmpty',
        'warning',
        'exporter',
        local daemon = '%s, job, instance' % config.clusterLabel;
        'min_over_time(%(up)s[%(window)s]) == 1 unless on (%(daemon)s) last_over_time(%(info)s[%(window)s])' % {
          up: s.series('up', config.jobSelector),
          info: s.series('fabricpulse_build_info'),
          window: config.exporterEmptyFor,
          daemon: daemon,
        },
        'A target of fabricpulse answers, but without the metrics of fabricpulse.',
        '{{ $labels.job }} of {{ $labels.instance }} answers scrapes ({{ $value }}) without fabricpulse_build_info: another program on this port, or relabelling that drops its metrics.',
        { 'for': config.exporterEmptyFor, seldom: true }
      ),
      lib.alert(
        config,
        'FabricExporterOld',
        'warning',
        'exporter',
        'group by (%s, job, instance, daemon, version) (%s)' % [
          config.clusterLabel,
          s.tooOld('mesh|nic|qp'),
        ],
        'An exporter is too old for these rules.',
        'The {{ $labels.daemon }} exporter of {{ $labels.instance }} (version {{ $labels.version }}) does not give all that these rules read ({{ $value }}): alerts on what only newer ones report are silent about it, as if all were well.',
        { 'for': config.exporterOldFor, rare: true }
      ),
      lib.alert(
        config,
        'FabricHostNotMember',
        'warning',
        'mesh',
        s.last('fabricpulse_mesh_member') + ' == 0',
        'A host is not in its own membership.',
        'The membership that {{ $labels.instance }} has read does not name it ({{ $value }}): it probes nothing, and peers call its NICs dead.',
        { 'for': config.notMemberFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricPushFailing',
        'warning',
        'mesh',
        'increase(%s[5m]) > 0' % s.series('fabricpulse_alert_push_failures_total'),
        'A daemon cannot push alerts.',
        '{{ $labels.alertmanager }} did not take {{ $value | printf "%.0f" }} pushes of {{ $labels.instance }}: only the rules raise its alerts, later.',
        { 'for': config.pushFailingFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricRemediationDown',
        'critical',
        'remediation',
        // An agent that reaches a receiver proves that there is one, also where that is scraped as another cluster's.
        'count by (%(c)s) (%(agents)s) unless on (%(c)s) %(receivers)s unless on (%(c)s) %(agents)s == 1' % {
          c: config.clusterLabel,
          agents: s.last('fabricpulse_remediation_agent_connected'),
          receivers: s.last('fabricpulse_remediation_heartbeat_age_seconds'),
        },
        'The remediation receiver is gone.',
        'There are {{ $value | printf "%.0f" }} agents, and Prometheus has had no receiver for more than ' + config.remediationDownFor + ': no alert is acted on.',
        // The first scrape of an agent may come before that of the receiver.
        { 'for': config.remediationDownFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricAgentLost',
        'warning',
        'remediation',
        s.again('fabricpulse_remediation_agent_connected', 0),
        'A remediation agent reaches no receiver.',
        'The agent of {{ $labels.instance }} reaches no receiver, or loses it again and again: nothing can be done for jobs on this host.',
        { 'for': config.agentLostFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricRemediationBlind',
        'critical',
        'remediation',
        '%s > %g or %s < 0' % [
          s.last('fabricpulse_remediation_alertmanager_age_seconds'),
          config.remediationBlindSeconds,
          s.last('fabricpulse_remediation_alertmanager_age_seconds'),
        ],
        'The remediation receiver cannot ask Alertmanager.',
        'The receiver {{ $labels.instance }} has not been able to poll all Alertmanagers for {{ $value | printf "%.0f" }} s (-1: never); it puts no NIC back into service meanwhile.',
        { 'for': config.agentLostFor }
      ),
      lib.alert(
        config,
        'FabricRemediationPaused',
        'warning',
        'remediation',
        s.once(s.last('fabricpulse_remediation_paused')) + ' == 1',
        'Remediation has been paused for long.',
        'The receiver {{ $labels.instance }} has been paused ({{ $value }}) for longer than ' + config.remediationPausedFor + '; did somebody forget it?',
        { 'for': config.remediationPausedFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricRemediationRefusing',
        'warning',
        'remediation',
        'sum by (%s, instance) (increase(%s[5m])) > 0' % [
          config.clusterLabel,
          s.series('fabricpulse_remediation_deliveries_total', 'code!~"2.."'),
        ],
        'The remediation receiver refuses deliveries.',
        'The receiver {{ $labels.instance }} answered {{ $value | printf "%.0f" }} webhooks with an error: token, size or content; its log says which.',
        { 'for': config.pushFailingFor }
      ),
      lib.alert(
        config,
        'FabricRemediationUnauthorized',
        'warning',
        'remediation',
        'sum by (%s, instance, route) (increase(%s[%s])) > 0' % [
          config.clusterLabel,
          s.series('fabricpulse_remediation_unauthorized_total'),
          config.remediationFailedWindow,
        ],
        'The remediation receiver refuses requests without valid credentials.',
        'The receiver {{ $labels.instance }} refused {{ $value | printf "%.0f" }} requests of {{ $labels.route }} without valid credentials: a wrong token somewhere, or an intruder.'
      ),
      // Where agents have one token in common it is the address that tells them apart.
      lib.alert(
        config,
        'FabricRemediationOtherAddress',
        'warning',
        'remediation',
        'sum by (%s, instance) (increase(%s[%s])) > 0' % [
          config.clusterLabel,
          s.series('fabricpulse_remediation_reports_refused_total', 'reason="address"'),
          config.remediationFailedWindow,
        ],
        'The remediation receiver refuses reports of a host from another address.',
        'The receiver {{ $labels.instance }} refused {{ $value | printf "%.0f" }} reports from another address than the one that reports for their host: an agent that has moved, or somebody who reports in its name. Its log names host and address.'
      ),
      lib.alert(
        config,
        'FabricRemediationJournalFailing',
        'critical',
        'remediation',
        s.last('fabricpulse_remediation_journal_writable') + ' == 0',
        'The remediation receiver cannot write its journal.',
        'The last commit of {{ $labels.instance }} failed ({{ $value }}): a full disk or a broken one. Nothing is done that is not in the journal first, so nothing is done.',
        { 'for': config.remediationJournalFailingFor }
      ),
      // Within a minute of a start, what the journal was when it was opened against what it last was. The window of
      // `offset` ends before the start, so it holds only what was there before.
      lib.alert(
        config,
        'FabricRemediationJournalChanged',
        'warning',
        'remediation',
        local name = 'fabricpulse_remediation_journal_seal';
        local key = '%s, instance' % config.clusterLabel;
        'max by (%(key)s) (%(start)s) != on (%(key)s) max by (%(key)s) (last_over_time(%(seal)s[1h] offset 1m)) unless on (%(key)s) max by (%(key)s) (%(start)s) == on (%(key)s) max by (%(key)s) (last_over_time(%(start)s[1h] offset 1m))' % {
          key: key,
          start: s.series(name + '_at_start'),
          seal: s.series(name),
        },
        'The journal of remediation is not what it was before the receiver started.',
        'The journal that the receiver {{ $labels.instance }} opened (seal {{ $value | printf "%.0f" }}) is not the one that Prometheus last saw: it was edited, replaced, or written in the last seconds before the stop.',
        { keep_firing_for: config.remediationJournalChangedFor }
      ),
      // Always fires. Point a dead man's switch at it: when it stops, alerting is broken.
      lib.alert(
        config,
        'FabricWatchdog',
        'none',
        'pipeline',
        'vector(1)',
        'Alerting works.',
        'This alert always fires ({{ $value }}); when it stops arriving, the path from Prometheus through Alertmanager is broken.'
      ),
    ]),
  },
}
