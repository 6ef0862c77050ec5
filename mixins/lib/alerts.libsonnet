// How an alert and its group are put together, so that no alert can lack what each must have.
{
  // A group, without the alerts that _config disables. `interval` is left to Prometheus.
  group(config, name, alerts)::
    { name: 'fabricpulse-' + name, rules: [alert for alert in alerts if !std.member(config.disabledAlerts, alert.alert)] },
  // The same, and more groups for alerts that need no evaluation with each scrape. `slow` in their `extra`: they tell of
  // minutes or an hour, and read a series of each NIC or flow. `paced`: they tell of flows, which are recorded as seldom, or
  // of delays, and wait for half a minute anyway. `seldom`: they wait for four minutes and more, or look back over eight. `rare`: they
  // wait for ten minutes and more, or look back over an hour.
  groups(config, name, alerts)::
    [
      group
      for group in [
        $.group(config, name, [alert for alert in alerts if !alert.slow && !alert.paced && !alert.seldom && !alert.rare]),
        $.group(config, name + '-paced', [alert for alert in alerts if alert.paced]) { interval: config.flowInterval },
        $.group(config, name + '-slow', [alert for alert in alerts if alert.slow]) { interval: config.slowInterval },
        $.group(config, name + '-seldom', [alert for alert in alerts if alert.seldom]) { interval: config.seldomInterval },
        $.group(config, name + '-rare', [alert for alert in alerts if alert.rare]) { interval: config.rareInterval },
      ]
      if group.rules != []
    ],

  // name: Fabric…; component: which part of fabricpulse raised it; summary: one sentence without templates;
  // description: templated, says on which object and how much. `extra` takes `for`, `keep_firing_for`, `labels`,
  // `slow`, `paced`, `seldom`, `rare`.
  alert(config, name, severity, component, expr, summary, description, extra={})::
    {
      alert: name,
      expr: expr,
      labels: {
        severity: std.get(config.severities, name, severity),
        component: component,
      } + config.extraLabels,
      annotations: {
        summary: summary,
        description: description,
        runbook_url: config.runbookURLPattern % name,
      },
    } + {
      [key]: extra[key]
      for key in std.objectFields(extra)
      if !std.member(['labels', 'slow', 'paced', 'seldom', 'rare'], key)
    } + { labels+: std.get(extra, 'labels', {}), slow:: std.get(extra, 'slow', false), paced:: std.get(extra, 'paced', false), seldom:: std.get(extra, 'seldom', false), rare:: std.get(extra, 'rare', false) },
}
