// Panels on congestion as NICs count it, of the NICs that a page selects: on the pages of NICs and of contention.
local g = import 'panels.libsonnet';
function(config, s) {
  local legend = '{{instance}} {{device}}',
  local recent(what, counters) = s.series('fabricpulse_nic_recent_' + what, 'counter=~"%s"' % std.join('|', counters)),
  local paused = recent('rate', ['pfc_pause_transmitted_seconds', 'pfc_pause_received_seconds', 'global_pause_received_seconds']),
  local stalled = s.series('fabricpulse_nic_pcie_outbound_stalled_writes_ratio'),
  stopped:: g.timeseries('Stopped, share of time', 'For how much of two minutes the switch pauses a NIC (received), the NIC pauses its switch (transmitted), or the host does not take what the NIC writes; the twenty with most in the range.', 'percentunit', [
    g.query(g.worst(config, paused, 'instance, device, counter'), legend + ' {{counter}}'),
    g.query(g.worst(config, stalled, 'instance, device', among='> 0'), legend + ' PCIe'),
    g.allZero(stalled, 'max_over_time(%s[$__range] @ end()) > 0 or on (%s, instance, device) max_over_time(%s[$__range] @ end())' % [stalled, config.clusterLabel, paused]),
  ]),
  grown:: g.timeseries('Congestion counters that grew, packets/s', 'Drops at the receiver, pause frames, marks and notifications, over two minutes, of NICs where they grew; the twenty with most in the range.', 'short', [
    g.query(g.worst(config, recent('rate', [
      'out_of_buffer_drops',
      'rnr_nak_packets_sent',
      'phy_discards',
      'priority_discards',
      'pcie_outbound_buffer_overflows',
      'pfc_pause_frames_received',
      'cnp_packets_handled',
      'ecn_marked_packets_received',
    ]), 'instance, device, counter'), legend + ' {{counter}}'),
    g.query(
      g.rising(
        config,
        'sum by (%s, instance, device) (rate(%s[2m]))' % [config.clusterLabel, s.series('fabricpulse_qp_ecn_marked_total')],
        s.series('fabricpulse_qp_ecn_marked_total'),
        'instance, device'
      ),
      legend + ' marked packets of jobs'
    ),
  ]) + g.mayBeNone,
}
