// What was done by itself, what was not and why; and whether the pipeline that decides is whole.
local g = import '../lib/panels.libsonnet';
local signals = import '../signals.libsonnet';
{
  grafanaDashboards+:: {
    local config = $._config,
    local cluster = '%s=~"$%s"' % [config.clusterLabel, config.clusterLabel],
    local s = signals(config, cluster),
    local bad = [{ color: 'green', value: 0 }, { color: 'red', value: 1 }],
    local counted(bad, all) = 'count(%s) or 0 * count(%s)' % [bad, all],
    local rate(name) = 'rate(%s[$__rate_interval])' % s.series('fabricpulse_remediation_' + name),

    'fabricpulse-remediation.json': g.dashboard(
      config,
      'remediation',
      'Remediation and pipeline',
      'Actions, guards, agents, and the exporters that feed it all.',
      [],
      [
        g.row('Now', [
          g.stat('NICs out of service', 'NICs that the receiver keeps out of service.', 'short', [
            g.query('sum(%s)' % s.series('fabricpulse_remediation_targets_out_of_service'), instant=true),
          ], [{ color: 'green', value: 0 }, { color: 'yellow', value: 1 }]),
          g.stat('Actions waiting', 'Actions that no agent has carried out yet.', 'short', [
            g.query('sum(%s)' % s.series('fabricpulse_remediation_pending_actions'), instant=true),
          ], bad),
          g.stat('Breakers tripped', 'Automatic actions have stopped themselves.', 'short', [
            g.query('sum(%s)' % s.series('fabricpulse_remediation_breaker_tripped'), instant=true),
          ], bad),
          g.stat('Paused', 'A person has stopped all decisions.', 'short', [
            g.query('sum(%s)' % s.series('fabricpulse_remediation_paused'), instant=true),
          ], bad),
          g.stat('Exporters down', 'Daemons that do not answer Prometheus.', 'short', [
            g.query(counted(s.series('up', config.jobSelector) + ' == 0', s.series('up', config.jobSelector)), instant=true),
          ], bad),
          g.stat('Collectors failing', 'Collectors whose last run failed.', 'short', [
            g.query(counted(s.last('fabricpulse_scrape_collector_success') + ' == 0', s.last('fabricpulse_scrape_collector_success')), instant=true),
          ], bad),
        ]),
        g.row('Actions', [
          g.timeseries('Actions by outcome', 'Per five minutes.', 'short', [
            g.query('sum by (action, outcome) (increase(%s[5m]))' % s.series('fabricpulse_remediation_actions_total'), '{{action}} {{outcome}}'),
          ]),
          g.timeseries('Forbidden by a guard', 'Actions that a guard did not allow, by guard.', 'short', [
            g.query('sum by (reason) (%s)' % rate('blocked_total'), '{{reason}}'),
          ]) + g.mayBeNone,
          g.timeseries('NICs out of service', 'As their agents keep them; the twenty hosts with most in the range.', 'short', [
            g.query('%s > 0' % g.worst(config, s.series('fabricpulse_remediation_agent_avoided'), 'instance'), '{{instance}}'),
            g.allZero(s.series('fabricpulse_remediation_agent_avoided'), 'max_over_time(%s[$__range] @ end()) > 0' % s.series('fabricpulse_remediation_agent_avoided')),
          ]),
          g.timeseries('Agents', 'Node agents by whether they have reported lately.', 'none', [
            g.query('sum by (state) (%s)' % s.series('fabricpulse_remediation_agents'), '{{state}}'),
          ]),
          g.unwell(config, 'Agents without a receiver', 'The twenty agents that reached none for longest in the range: nothing can be done for jobs on their hosts.', s.series('fabricpulse_remediation_agent_connected'), 'instance', '{{instance}}', ['no receiver', 'connected']),
          g.unwell(config, 'Rules that stopped themselves', 'They only observe until an operator resumes them.', s.series('fabricpulse_remediation_rule_stopped'), 'instance, rule', '{{rule}} {{instance}}', ['acts', 'only observes'], 0),
          g.unwell(config, 'Problems of the receiver', 'As its status names them; the twenty that lasted longest in the range. Some end by themselves, for the others FabricRemediationNeedsOperator fires.', s.series('fabricpulse_remediation_problem'), 'instance, code', '{{code}} {{instance}}', ['no', 'yes'], 0),
          // Without a judged action there is no row: it would be 0/0. Instant, as a range of a month at each step of a
          // graph is more than Prometheus takes.
          g.table(config, 'Hit rate of each rule', 'Share of the actions of 30 days after which jobs recovered, of those for which that is known; the smallest first. Rules without such an action are not listed.', 'percentunit', [
            g.query('sort(sum by (rule) (increase(%s[30d])) / (sum by (rule) (increase(%s[30d])) > 0))' % [
              s.series('fabricpulse_remediation_judged_actions_total', 'recovery="recovered"'),
              s.series('fabricpulse_remediation_judged_actions_total', 'recovery=~"recovered|not_recovered"'),
            ]),
          ], [['rule', 'rule'], ['Value', 'recovered']]),
        ]),
        g.row('Rebalancing', [
          g.timeseries('Plans', 'Plans to put lanes of jobs on other paths, by how they ended; per hour.', 'short', [
            g.query('sum by (outcome) (increase(%s[1h]))' % s.series('fabricpulse_remediation_rebalances_total'), '{{outcome}}'),
          ]) + g.mayBeNone,
          g.timeseries('Gain of the last plan', 'Goodput of the jobs after it, by that before it: what was predicted, and what was measured.', 'none', [
            g.query('max by (kind) (%s)' % s.series('fabricpulse_remediation_rebalance_gain_ratio'), '{{kind}}'),
          ]) + g.mayBeNone,
        ]),
        g.row('Pipeline', [
          g.timeseries('Webhook deliveries', 'Notifications of Alertmanager by answer.', 'reqps', [
            g.query('sum by (code) (%s)' % rate('deliveries_total'), '{{code}}'),
          ]),
          g.timeseries('Requests without valid credentials', 'By route, and reports of a host from another address, per quarter of an hour.', 'short', [
            g.query('sum by (instance, route) (increase(%s[15m]))' % s.series('fabricpulse_remediation_unauthorized_total'), '{{route}} {{instance}}'),
            g.query('sum by (instance) (increase(%s[15m]))' % s.series('fabricpulse_remediation_reports_refused_total', 'reason="address"'), 'other address {{instance}}'),
          ]),
          g.unwell(config, 'Journals that could not be written', 'Nothing is done that is not in the journal first.', s.series('fabricpulse_remediation_journal_writable'), 'instance', '{{instance}}', ['fails', 'writable']),
          g.timeseries('Seal of the journal', 'What it was when it was last opened, and is now. After a start the former must be what the latter was before.', 'none', [
            g.query(s.series('fabricpulse_remediation_journal_seal_at_start'), 'at start {{instance}}'),
            g.query(s.series('fabricpulse_remediation_journal_seal'), 'now {{instance}}'),
          ]),
          g.timeseries('Age of what the receiver knows', 'Since its reconciler last ended a cycle, and since Alertmanager last said what is active.', 's', [
            g.query(s.series('fabricpulse_remediation_heartbeat_age_seconds'), 'reconciler {{instance}}'),
            g.query(s.series('fabricpulse_remediation_alertmanager_age_seconds'), 'Alertmanager {{instance}}'),
          ]),
        ]),
      ]
    ),
  },
}
