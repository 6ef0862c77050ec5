// Each expression that more than one rule or panel needs, once. `signals(config, matchers)` returns functions and
// strings; `matchers` are the label matchers of a panel ('device=~"$device"'), '' in rules.
function(config, matchers='') {
  local join(parts) = std.join(',', [part for part in parts if part != '']),
  local all(more='') = '{' + join([config.selector, matchers, more]) + '}',

  // A series with the selectors of _config and panel, and what else is asked: series('up', 'job="x"').
  series(name, more=''):: name + if all(more) == '{}' then '' else all(more),

  // What stands behind the name of a recorded series.
  braces:: if all() == '{}' then '' else all(),

  // The last value that a scrape brought, also while scrapes fail: a stale series has no instant value.
  last(name, more=''):: 'last_over_time(%s[%s])' % [$.series(name, more), config.lastValueWindow],

  nicConnected:: $.last('fabricpulse_nic_connected'),
  nicDisconnects(window):: 'increase(%s[%s])' % [$.series('fabricpulse_nic_disconnects_total'), window],
  linkDowns(window):: 'increase(%s[%s])' % [$.series('fabricpulse_nic_port_down_transitions_total'), window],
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
  // A NIC that fails once fails all its lanes: what counts is how often a lane failed on average.
  laneFailoversPerLane(window)::
    '%s / sum without (state) (%s)' % [$.laneFailovers(window), $.last('fabricpulse_lanes')],
  laneFailovers(window):: 'increase(%s[%s])' % [$.series('fabricpulse_lane_failovers_total'), window],

  // Quantile of a histogram; `keep` names the labels that stay, '' keeps all.
  quantile(q, name, window, keep='')::
    local rate = 'rate(%s[%s])' % [$.series(name + '_bucket'), window];
    'histogram_quantile(%g, %s)' % [q, if keep == '' then rate else 'sum by (%s, le) (%s)' % [keep, rate]],
}
