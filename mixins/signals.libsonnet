// Each expression that more than one rule or panel needs, once. `signals(config, matchers)` returns functions and
// strings; `matchers` are the label matchers of a panel ('device=~"$device"'), '' in rules.
function(config, matchers='') {
  // Of a duration of Prometheus: '90s', '1m30s', '2h'.
  local units = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86400, w: 7 * 86400, y: 365 * 86400 },
  local seconds(window, number='', unit='') =
    local sum = if unit == '' then 0 else std.parseInt(number) * units[unit];
    if window == '' then sum
    else if std.member('0123456789', window[0]) then
      if unit == '' then seconds(window[1:], number + window[0])
      else sum + seconds(window[1:], window[0])
    else seconds(window[1:], number, unit + window[0]),
  seconds(window):: seconds(window),

  local join(parts) = std.join(',', [part for part in parts if part != '']),
  local all(more='') = '{' + join([config.selector, matchers, more]) + '}',

  // What is so of each daemon, or of what it speaks of: once, whichever pod says it. One that has been replaced is another series,
  // and `for` would begin anew.
  once(expr, labels='', how='max'):: '%s by (%s) (%s)' % [how, join([config.clusterLabel + ', job, instance', labels]), expr],

  // A series with the selectors of _config and panel, and what else is asked: series('up', 'job="x"').
  series(name, more=''):: name + if all(more) == '{}' then '' else all(more),

  // What stands behind the name of a recorded series.
  braces:: if all() == '{}' then '' else all(),

  // The last value that a scrape brought, also while scrapes fail: a stale series has no instant value.
  last(name, more=''):: 'last_over_time(%s[%s])' % [$.series(name, more), config.lastValueWindow],

  // Exporters (`daemons`: a pattern) that do not give all that rules read: METRICS_VERSION (core/fabricpulse/core/metrics/common.py) or more is
  // new enough; older ones have no such label.
  tooOld(daemons):: $.last('fabricpulse_build_info', 'daemon=~"%s", metrics_version!~"[5-9]|[0-9][0-9]+"' % daemons),

  // A gauge that is `value`, or is so again and again: what changes with each scrape never stays for as long as a `for` asks.
  // In the second case the value is how often it has changed within unsteadyWindow.
  again(name, value, more='')::
    local series = $.series(name, more);
    '(%(last)s == %(value)d or changes(%(series)s[%(window)s]) >= %(changes)d and avg_over_time(%(series)s[%(window)s]) %(share)s)' % {
      last: $.last(name, more),
      value: value,
      series: series,
      window: config.unsteadyWindow,
      changes: config.unsteadyChanges,
      share: if value == 0 then '< %g' % (1 - config.unsteadyShare) else '> %g' % config.unsteadyShare,
    },

  // A target that answers only some of its scrapes: the value is how often that has changed.
  scrapesFailing::
    local up = $.series('up', config.jobSelector);
    'changes(%(up)s[%(window)s]) >= %(changes)d and avg_over_time(%(up)s[%(window)s]) < %(share)g' % {
      up: up,
      window: config.unsteadyWindow,
      changes: config.unsteadyChanges,
      share: 1 - config.unsteadyShare,
    },

  // How many scrapes of a target have failed that has had no good one: see exporterDownFor. Few are subtracted.
  down::
    local up = $.series('up', config.jobSelector);
    '(count_over_time(%(up)s[%(window)s]) - (sum_over_time(%(up)s[%(window)s]) and max_over_time(%(up)s[%(down)s]) == 0) >= %(least)d)' % {
      up: up,
      window: config.exporterFailedWindow,
      down: config.exporterDownFor,
      least: config.exporterFailedScrapes,
    },

  // How much error and congestion counters of a NIC have grown lately, as the NIC exporter exposes it, of those that have: over two
  // minutes a second, over a quarter of an hour. Rules that read the counters of each NIC themselves take seconds of a
  // thousand hosts.
  recentRate(counters):: $.last('fabricpulse_nic_recent_rate', 'counter=~"%s"' % std.join('|', counters)),
  recentIncrease(counters):: $.last('fabricpulse_nic_recent_increase', 'counter=~"%s"' % std.join('|', counters)),

  nicConnected:: $.last('fabricpulse_nic_connected'),
  // A NIC once, whichever pod speaks of it: the one that is there before one that has been replaced. Mesh exporters say it
  // of NICs that are or were disconnected: to ask each NIC of a fleet at each evaluation takes long. Where nobody says so
  // (a list of metrics to keep) the gauge of all NICs tells, up to rareInterval later: it is recorded
  // (rules/nic.libsonnet), and that a replaced pod is no longer right.
  local nic = '%s, job, instance, device, network, leaf' % config.clusterLabel,
  nicDisconnected::
    '(max by (%(nic)s) (%(now)s) or max by (%(nic)s) (%(last)s) or %(zero)s unless on (%(nic)s) %(outdated)s)' % {
      nic: nic,
      now: $.series('fabricpulse_nic_disconnected'),
      last: $.last('fabricpulse_nic_disconnected'),
      zero: $.nicZero,
      outdated: 'device:fabricpulse_nic_connected:outdated_zero' + $.braces,
    },
  // NICs that some pod called disconnected last.
  nicZero:: 'device:fabricpulse_nic_connected:zero' + $.braces,
  // NICs that each pod, also one that is gone, called disconnected last.
  nicAllZero:: 'max by (%s, instance, device, network) (%s) == 0' % [config.clusterLabel, $.nicConnected],
  // NICs that no pod calls connected. Not by what is recorded, which is up to rareInterval old, where the exporter itself says of the NIC
  // what it is: one that has just come back would count.
  nicDead::
    local key = '%s, instance, device, network' % config.clusterLabel;
    local said = 'min by (%s) (%s)' % [key, $.last('fabricpulse_nic_disconnected')];
    '%s == 1 or device:fabricpulse_nic_connected:all_zero%s unless on (%s) %s' % [said, $.braces, key, said],
  // Hosts all of whose NICs are such: nothing gets through to them.
  hostCutOff::
    local host = config.clusterLabel + ', instance';
    'sum by (%s) (group by (%s, device) (%s)) >= on (%s) host:fabricpulse_nic_network:count%s' % [host, host, $.nicDead, host, $.braces],
  nicLastZero:: 'group by (%s) (%s == 0)' % [nic, $.nicConnected],
  // NICs that a pod that is gone called disconnected last, and that those that are there call connected.
  nicOutdatedZero:: '%s and on (%s) min by (%s) (%s) == 1' % [$.nicZero, nic, nic, $.series('fabricpulse_nic_connected')],

  nicDisconnects(window):: 'increase(%s[%s])' % [$.series('fabricpulse_nic_disconnects_total'), window],
  // Exporters say when: the last twenty times within two hours, of what has had any. Their counters rules would have to read of each
  // NIC of a fleet, and over the whole window. What a pod saw before it was replaced counts until it is older than the window: its last age
  // stands still, the time since it was said is added. An exporter that is restarted as the same target knows nothing of earlier times, and its times
  // take the place of as many of the earlier process.
  local times(ages, by, window, threshold) = 'count by (%(by)s) (last_over_time(%(ages)s[%(window)s]) + time() - (timestamp(%(ages)s) or max_over_time(timestamp(%(ages)s)[%(window)s:15s])) < %(seconds)s) >= %(threshold)d' % {
    by: by,
    ages: $.series(ages),
    window: window,
    seconds: seconds(window),
    threshold: threshold,
  },
  local nicFlaps(window, threshold) = '(%s)' % times('fabricpulse_nic_recent_disconnect_age_seconds', nic, window, threshold),
  flapping:: nicFlaps(config.flapWindow, config.flapThreshold),
  flappingSlowly:: nicFlaps(config.slowFlapWindow, config.slowFlapThreshold),
  linkDowns(window):: 'increase(%s[%s])' % [$.series('fabricpulse_nic_port_down_transitions_total'), window],
  linkFlaps(window, threshold)::
    times('fabricpulse_nic_port_recent_down_age_seconds', config.clusterLabel + ', job, instance, device, rdma_device, port', window, threshold),
  // Lanes times speed, of what card and slot can both do; of what the card can do where the slot is not known.
  pcieShare(more='')::
    local last(name) = $.last('fabricpulse_nic_pcie_link_' + name, more);
    local lanes = 'width_lanes';
    local speed = 'transfers_per_second';
    '%s * %s / (%s * %s or %s * %s)' % [
      last(lanes),
      last(speed),
      last(lanes + '_attainable'),
      last(speed + '_attainable'),
      last(lanes + '_max'),
      last(speed + '_max'),
    ],
  clockSynchronized:: $.last('fabricpulse_clock_synchronized'),
  clockBound:: $.last('fabricpulse_clock_error_bound_seconds'),
  laneFailovers(window):: 'increase(%s[%s])' % [$.series('fabricpulse_lane_failovers_total'), window],
  // A job has a workload of its own: its counters may be far above 0 when they are first seen. What an exporter shows that
  // was there a window ago and did not show it has all happened since. Nothing of a known lane without any, as most are.
  laneFailoversSince(window, lane)::
    local name = 'fabricpulse_lane_failovers_total';
    local known = '%s offset %s' % [$.series('fabricpulse_build_info'), window];
    '(sum by (%(lane)s) (%(series)s > 0 unless on (%(lane)s) %(series)s offset %(window)s and on (%(daemon)s) %(known)s) or sum by (%(lane)s) (increase(%(series)s[%(window)s]) > 0))' % {
      lane: lane,
      series: $.series(name),
      window: window,
      daemon: '%s, job, instance' % config.clusterLabel,
      known: known,
    },

  // The rate of each counter of a flow, and their sums by labels.
  flowRate(name):: 'rate(%s[%s])' % [$.series(name), config.rateWindow],
  flowRates(name, by):: 'sum by (%s) (%s)' % [by, $.flowRate(name)],
  // Quantile of a histogram; `keep` names the labels that stay, '' keeps all.
  quantile(q, name, window, keep='')::
    local rate = 'rate(%s[%s])' % [$.series(name + '_bucket'), window];
    'histogram_quantile(%g, %s)' % [q, if keep == '' then rate else 'sum by (%s, le) (%s)' % [keep, rate]],
}
