// The NICs themselves: links, errors, congestion marks, PCIe, GIDs. From the NIC exporter, by RDMA device.
local g = import '../lib/panels.libsonnet';
local signals = import '../signals.libsonnet';
{
  grafanaDashboards+:: {
    local config = $._config,
    local cluster = '%s=~"$%s"' % [config.clusterLabel, config.clusterLabel],
    local s = signals(config, cluster + ', instance=~"$instance", device=~"$device"'),
    local rate(name) = 'rate(%s[$__rate_interval])' % s.series('fabricpulse_nic_' + name),
    local port = s.series('fabricpulse_nic_port_up'),
    // The busiest over the range.
    local busiest(name, count=20) = g.rising(config, rate(name), s.series('fabricpulse_nic_' + name), 'instance, device', count),
    local legend = '{{instance}} {{device}}',
    local unchanged(names) = g.unchanged([s.series('fabricpulse_nic_' + n) for n in names]),
    // Of each the busiest, twenty lines together.
    local perSecond(title, description, unit, names) =
      g.timeseries(title, description, unit, [
        g.query(busiest(n, 20 / std.length(names)), legend + ' ' + std.strReplace(n, '_total', ''))
        for n in names
      ] + [unchanged(names)]),

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
          g.stat('Ports', 'Ports that there are.', 'short', [g.query('count(%s)' % port, instant=true)], [{ color: 'blue', value: 1 }]),
          g.stat('Ports down', 'Ports that are not active.', 'short', [
            g.query('count(%(port)s == 0) or 0 * count(%(port)s)' % { port: port }, instant=true),
          ], [{ color: 'green', value: 0 }, { color: 'red', value: 1 }]),
          g.stateTimeline(
            'Ports that were down',
            'The twenty ports that were not active for longest in the range. Red: not active.',
            port,
            {
              on: '%s, instance, device, port' % config.clusterLabel,
              series: 'bottomk(20, avg_over_time(%s[$__range] @ end()) < 1)' % port,
            },
            legend + ' {{port}}',
            port,
            { '0': { text: 'down', color: 'red' }, '1': { text: 'active', color: 'green' } }
          ),
          g.timeseries('Link drops', 'How often a link went down, per five minutes; exact, from the kernel; the twenty that did most often in the range.', 'short', [
            g.query(g.rising(config, s.linkDowns('5m'), s.series('fabricpulse_nic_port_down_transitions_total'), 'instance, device'), legend + ' {{port}}'),
            unchanged(['port_down_transitions_total']),
          ]),
          g.timeseries('Outages, p99', 'How long a link was down, 99th percentile of an hour; the twenty that were down most often in the range.', 's', [
            g.query(
              g.rising(
                config,
                s.quantile(0.99, 'fabricpulse_nic_flap_duration_seconds', '1h'),
                s.series('fabricpulse_nic_flap_duration_seconds_count'),
                'instance, device'
              ),
              legend + ' {{port}}'
            ),
            unchanged(['flap_duration_seconds_count']),
          ]),
        ]),
        g.row('Traffic', [
          g.timeseries('Received', 'RDMA traffic received; the twenty busiest NICs of the range.', 'Bps', [g.query(busiest('received_bytes_total'), legend)]),
          g.timeseries('Transmitted', 'RDMA traffic transmitted; the twenty busiest NICs of the range.', 'Bps', [g.query(busiest('transmitted_bytes_total'), legend)]),
        ]),
        g.row('Congestion', [
          perSecond('Congestion marks, packets/s', 'Packets received with the congestion mark, and notifications sent and handled.', 'short', [
            'ecn_marked_packets_received_total',
            'cnp_packets_sent_total',
            'cnp_packets_handled_total',
          ]),
          perSecond('Loss on the way, packets/s', 'Packets out of sequence, sequence errors and expired acknowledgement timers: what was lost came again.', 'short', [
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
        g.row('Optics and netdev', [
          g.timeseries('Module temperature', 'The twenty hottest modules of the range.', 'celsius', [
            g.query(g.worst(config, s.series('fabricpulse_nic_module_temperature_celsius'), 'instance, device'), legend),
          ]),
          g.timeseriesLeast('Received light', 'Optical power by lane; the twenty darkest lanes of the range.', 'watt', [
            g.query(g.least(config, s.series('fabricpulse_nic_module_received_power_watts'), 'instance, device, lane'), legend + ' {{lane}}'),
          ]),
          g.timeseries('Packets dropped by the host, packets/s', 'Of the netdev, received and sent; the ten devices that drop most of each.', 'short', [
            g.query(busiest('link_receive_drops_total', 10), legend + ' received'),
            g.query(busiest('link_transmit_drops_total', 10), legend + ' sent'),
            unchanged(['link_receive_drops_total', 'link_transmit_drops_total']),
          ]),
          g.timeseries('Corrected bits', 'What forward error correction has corrected; the twenty largest of the range.', 'short', [
            g.query(busiest('fec_corrected_bits_total'), legend),
            unchanged(['fec_corrected_bits_total']),
          ]),
        ]),
        g.row('Host', [
          g.table('PCIe, the slowest', 'Lanes times speed, of what card and slot can do; the twenty lowest.', 'percentunit', [
            g.query('bottomk(20, max by (%s, instance, device) (%s))' % [config.clusterLabel, s.pcieShare()]),
          ], [['instance', 'host'], ['device', 'device'], ['Value', 'share']], [config.clusterLabel]),
          g.table('GID index that NCCL would use', 'How many ports have which; NCCL takes one index for all ports of a host. More than one line: FabricNicOddOneOut names the odd ones.', 'none', [
            g.query('count_values("index", %s)' % s.series('fabricpulse_nic_nccl_gid_index')),
          ], [['index', 'GID index'], ['Value', 'ports']]),
        ]),
      ]
    ),
  },
}
