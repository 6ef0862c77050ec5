// PromQL of what a panel shows of many series: which of them, over the whole range, and what says that there are none.
//
// Part of panels.libsonnet, whose `query` it uses.
{
  // Those series that were largest over the whole range, not others at each moment; `least` for the smallest. among: what
  // they are chosen from, 'and on (…) …'.
  local overRange(rank, over) = function(config, series, labels, count=20, among='')
    '%s and on (%s, %s) %s(%d, %s(%s[$__range] @ end())%s)' % [
      series,
      config.clusterLabel,
      labels,
      rank,
      count,
      over,
      series,
      if among == '' then '' else ' ' + among,
    ],
  worst:: overRange('topk', 'max_over_time'),
  least:: overRange('bottomk', 'avg_over_time'),
  // Of counters: those that rose most over the whole range, of those that rose at all. rates: what is drawn, by `labels`.
  rising(config, rates, counter, labels, count=20)::
    local by = '%s, %s' % [config.clusterLabel, labels];
    '%s and on (%s) topk(%d, sum by (%s) (increase(%s[$__range] @ end())) > 0)' % [rates, by, count, by, counter],
  // A line at 0 where none of these counters has risen in the range, and all that was measured in it still is: an empty
  // panel does not say whether nothing has happened or nothing was measured.
  unchanged(counters)::
    local any(form) = std.join(' or ', [form % { counter: counter } for counter in counters]);
    $.query(
      '0 * (%s) unless on () (%s) unless on () (%s)' % [
        any('count(%(counter)s @ end())'),
        any('sum(increase(%(counter)s[$__range] @ end())) > 0'),
        any('(last_over_time(%(counter)s[$__range] @ end()) unless %(counter)s @ end())'),
      ],
      'none in the range'
    ),
  // The same for gauges of which no more than 0 is a fault. faults: those that had one in the range.
  allZero(measured, faults)::
    $.query(
      '0 * count(%(m)s) unless on () (%(faults)s) unless on () (count(last_over_time(%(m)s[$__range] @ end())) > count(%(m)s))' % { m: measured, faults: faults },
      'none above 0'
    ),
  // NICs that were not well in the range: those that flapped most, then those that were away for longest.
  faultyNics(config, s, count=20):: {
    on: '%s, instance, device' % config.clusterLabel,
    series: 'topk(%(count)d, sum by (%(c)s, instance, device) (1 - avg_over_time(%(connected)s[$__range] @ end()) + (increase(%(disconnects)s[$__range] @ end()) or 0 * avg_over_time(%(connected)s[$__range] @ end()))) > 0)' % {
      c: config.clusterLabel,
      count: count,
      connected: s.series('fabricpulse_nic_connected'),
      disconnects: s.series('fabricpulse_nic_disconnects_total'),
    },
  },

  // What each selector of a dashboard has: the fleet that was chosen, within the fleet that the mixin is for.
  clusterMatcher(config)::
    local own = '%s=~"$%s"' % [config.clusterLabel, config.clusterLabel];
    if config.selector == '' then own else config.selector + ', ' + own,
  // The same of alerts. One that names no cluster is of each: FabricNoData, where no series is left to name one.
  alertMatcher(config)::
    local own = '%s=~"$%s|"' % [config.clusterLabel, config.clusterLabel];
    if config.selector == '' then own else config.selector + ', ' + own,
}
