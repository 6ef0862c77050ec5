// The NICs themselves: links, errors, congestion marks, PCIe, GIDs. From the NIC exporter, by RDMA device.
local g = import '../lib/panels.libsonnet';
local signals = import '../signals.libsonnet';
{
  grafanaDashboards+:: {
    local config = $._config,
    local cluster = '%s=~"$%s"' % [config.clusterLabel, config.clusterLabel],
    local s = signals(config, cluster + ', instance=~"$instance", device=~"$device"'),
    local rate(name) = 'rate(%s[$__rate_interval])' % s.series('fabricpulse_nic_' + name),
    local legend = '{{instance}} {{device}}',
    local perSecond(title, description, unit, names) =
      g.timeseries(title, description, unit, [g.query('%s > 0' % rate(n), legend + ' ' + std.strReplace(n, '_total', '')) for n in names]),

    'fabricpulse-nic.json': g.dashboard(
      config,
      'nic',
      'NIC hardware',
      'Links, errors, congestion, PCIe and GIDs of the RDMA devices.',
      [
        g.variable(config, 'instance', 'Host', 'fabricpulse_nic_port_up', g.clusterMatcher(config)),
        g.variable(config, 'device', 'Device', 'fabricpulse_nic_port_up', g.clusterMatcher(config) + ', instance=~"$instance"'),
      ],
      [
        g.row('Links', [
          g.statusHistory('Ports', 'Whether the port is active. Red: it is not.', [g.query(s.series('fabricpulse_nic_port_up'), legend + ' {{port}}')], {
            '0': { text: 'down', color: 'red' },
            '1': { text: 'active', color: 'green' },
          }),
          g.timeseries('Link drops', 'How often a link went down, per five minutes; exact, from the kernel.', 'short', [
            g.query('%s > 0' % s.linkDowns('5m'), legend + ' {{port}}'),
          ]),
          g.timeseries('Outages, p99', 'How long a link was down, 99th percentile of an hour.', 's', [
            g.query(s.quantile(0.99, 'fabricpulse_nic_flap_duration_seconds', '1h'), legend + ' {{port}}'),
          ]),
        ]),
        g.row('Traffic', [
          g.timeseries('Received', 'RDMA traffic received.', 'Bps', [g.query(rate('received_bytes_total'), legend)]),
          g.timeseries('Transmitted', 'RDMA traffic transmitted.', 'Bps', [g.query(rate('transmitted_bytes_total'), legend)]),
        ]),
        g.row('Congestion', [
          perSecond('Congestion marks', 'Packets received with the congestion mark, and notifications sent and handled.', 'pps', [
            'ecn_marked_packets_received_total',
            'cnp_packets_sent_total',
            'cnp_packets_handled_total',
          ]),
          perSecond('Loss on the way', 'Packets out of sequence, sequence errors and expired acknowledgement timers: what was lost came again.', 'pps', [
            'out_of_sequence_packets_received_total',
            'packet_sequence_errors_total',
            'ack_timeouts_total',
            'retransmits_total',
          ]),
        ]),
        g.row('Errors', [
          perSecond('Physical errors', 'Symbol errors, integrity errors and recoveries of the link.', 'short', [
            'symbol_errors_total',
            'local_link_integrity_errors_total',
            'link_error_recovery_total',
            'receive_errors_total',
          ]),
          perSecond('Queue pairs lost', 'Queue pairs that ended because retries ran out: each is an error that a job sees.', 'short', [
            'transport_retries_exceeded_total',
            'rnr_retries_exceeded_total',
          ]),
        ]),
        g.row('Host', [
          g.timeseries('PCIe', 'Lanes times speed, of what the device can take.', 'percentunit', [g.query(s.pcieShare(), legend)]),
          g.table('GID index that NCCL would use', 'By port; NCCL takes one index for all ports of a host.', 'none', [
            g.query(s.series('fabricpulse_nic_nccl_gid_index')),
          ], { Value: 'GID index', instance: 'host' }, ['job']),
        ]),
      ]
    ),
  },
}
