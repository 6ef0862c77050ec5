// The NICs themselves: links, errors, congestion marks, PCIe, GIDs. From the NIC exporter, by RDMA device.
local congestion = import '../lib/congestion.libsonnet';
local g = import '../lib/panels.libsonnet';
local signals = import '../signals.libsonnet';
{
  grafanaDashboards+:: {
    local config = $._config,
    local cluster = '%s=~"$%s"' % [config.clusterLabel, config.clusterLabel],
    local s = signals(config, cluster + ', instance=~"$instance", device=~"$device"'),
    local host = signals(config, cluster + ', instance=~"$instance"'),
    local rate(name) = 'rate(%s[$__rate_interval])' % s.series('fabricpulse_nic_' + name),
    local port = s.series('fabricpulse_nic_port_up'),
    // The busiest over the range.
    local busiest(name, count=20) = g.rising(config, rate(name), s.series('fabricpulse_nic_' + name), 'instance, device', count),
    local legend = '{{instance}} {{device}}',
    local recent(what, counters) = s.series('fabricpulse_nic_recent_' + what, 'counter=~"%s"' % std.join('|', counters)),
    local unchanged(names) = g.unchanged([s.series('fabricpulse_nic_' + n) for n in names]),
    local ports = {
      expected: host.series('fabricpulse_nic_expected_ports'),
      up: host.series('fabricpulse_nic_expected_ports_up'),
      missing: 'topk(20, max by (%s, instance) (max_over_time(%s[$__range] @ end()) - min_over_time(%s[$__range] @ end())) > 0)' % [config.clusterLabel, self.expected, self.up],
    },
    local rdma = 'RDMA devices',
    local optics = 'modules with diagnostics',
    local pcie = 'NICs on a PCIe bus',
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
            config,
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
          g.unwell(config, 'NICs gone from the bus', 'The twenty PCI functions that were away for longest in the range. Red: gone, or without a driver.', s.series('fabricpulse_nic_present'), 'instance, device, pci_address', legend + ' {{pci_address}}', ['gone', 'present']),
          g.timeseries('Ports missing', 'How many ports fewer are active at the expected rate than a host should have; the twenty hosts with most in the range.', 'short', [
            g.query('%s - %s and on (%s, instance) %s' % [ports.expected, ports.up, config.clusterLabel, ports.missing], '{{instance}}'),
            g.allZero(ports.up, ports.missing),
          ]),
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
          g.timeseries('Received', 'RDMA traffic received; the twenty busiest NICs of the range.', 'Bps', [g.query(busiest('received_bytes_total'), legend)]) + g.only(rdma),
          g.timeseries('Transmitted', 'RDMA traffic transmitted; the twenty busiest NICs of the range.', 'Bps', [g.query(busiest('transmitted_bytes_total'), legend)]) + g.only(rdma),
        ]),
        g.row('Congestion', [
          congestion(config, s).stopped,
          congestion(config, s).grown,
          g.timeseries('Waits for credits, ticks/s', 'InfiniBand: data was there and no credits (XmitWait), in ticks of the device; the twenty with most in the range.', 'short', [
            g.query(busiest('transmit_wait_ticks_total'), legend),
            unchanged(['transmit_wait_ticks_total']),
          ]) + g.only('InfiniBand devices'),
          perSecond('Congestion marks, packets/s', 'Packets received with the congestion mark, and notifications sent and handled.', 'short', [
            'ecn_marked_packets_received_total',
            'cnp_packets_sent_total',
            'cnp_packets_handled_total',
          ]) + g.only(rdma),
          perSecond('Loss on the way, packets/s', 'Packets out of sequence, sequence errors and expired acknowledgement timers: what was lost came again.', 'short', [
            'out_of_sequence_packets_received_total',
            'packet_sequence_errors_total',
            'ack_timeouts_total',
            'retransmits_total',
          ]) + g.only(rdma),
        ]),
        g.row('Errors', [
          g.timeseries('Errors that grew', 'By how much error counters have grown within a quarter of an hour, of NICs where they did; the twenty with most in the range.', 'short', [
            g.query(g.worst(config, recent('increase', [
              'transport_retries_exceeded',
              'rnr_retries_exceeded',
              'fec_uncorrectable_blocks',
              'phy_pcs_symbol_errors',
              'symbol_errors',
              'link_crc_errors',
              'phy_crc_errors',
              'icrc_errors',
              'link_error_recovery',
              'link_downed',
              'gid_index_moves',
              'kernel_messages',
              'pause_storm_warning_events',
              'pause_storm_error_events',
            ]), 'instance, device, counter, kind'), legend + ' {{counter}} {{kind}}'),
          ]) + g.mayBeNone,
          perSecond('Physical errors', 'Symbol errors, integrity errors and recoveries of the link.', 'short', [
            'symbol_errors_total',
            'local_link_integrity_errors_total',
            'link_error_recovery_total',
            'receive_errors_total',
          ]) + g.only(rdma),
          perSecond('Queue pairs lost', 'Queue pairs that ended because retries ran out: each is an error that a job sees.', 'short', [
            'transport_retries_exceeded_total',
            'rnr_retries_exceeded_total',
          ]) + g.only(rdma),
        ]),
        g.row('Optics and netdev', [
          g.timeseries('Module temperature', 'The twenty hottest modules of the range.', 'celsius', [
            g.query(g.worst(config, s.series('fabricpulse_nic_module_temperature_celsius'), 'instance, device'), legend),
          ]) + g.only(optics),
          g.timeseriesLeast('Received light', 'Optical power by lane; the twenty darkest lanes of the range.', 'watt', [
            g.query(g.least(config, s.series('fabricpulse_nic_module_received_power_watts'), 'instance, device, lane'), legend + ' {{lane}}'),
          ]) + g.only(optics),
          g.timeseries('Packets dropped by the host, packets/s', 'Of the netdev, received and sent; the ten devices that drop most of each.', 'short', [
            g.query(busiest('link_receive_drops_total', 10), legend + ' received'),
            g.query(busiest('link_transmit_drops_total', 10), legend + ' sent'),
            unchanged(['link_receive_drops_total', 'link_transmit_drops_total']),
          ]),
          g.timeseries('Corrected bits', 'What forward error correction has corrected; the twenty largest of the range.', 'short', [
            g.query(busiest('fec_corrected_bits_total'), legend),
            unchanged(['fec_corrected_bits_total']),
          ]) + g.only('links with forward error correction'),
        ]),
        g.row('Set-up', [
          g.table(config, 'GIDs that NCCL would use', 'Of each port, by its type and index; those of InfiniBand have the type of RoCE v1.', 'none', [
            g.query('max by (%s, instance, device, rdma_device, port, index, gid_type, address_family) (%s)' % [config.clusterLabel, s.last('fabricpulse_nic_nccl_gid_info')]),
          ], [['instance', 'host'], ['device', 'device'], ['rdma_device', 'RDMA device'], ['port', 'port'], ['index', 'index'], ['gid_type', 'type'], ['address_family', 'addresses']], ['Value']) + g.only(rdma),
          g.unwell(config, 'Hosts without a common GID index', 'The twenty hosts whose ports had none, or different ones, for longest in the range.', host.series('fabricpulse_nic_nccl_gid_index_consistent'), 'instance', '{{instance}}', ['none in common', 'common']),
          g.table(config, 'NICs unlike the median of their network', 'MTU, PFC, speed, GID index and trust of DSCP, as numbers; which of them are too few to be a second fleet FabricNicOddOneOut tells.', 'none', local of(record) = '%s{%s, %s}' % [record, g.clusterMatcher(config), 'device=~"$device"']; local different = 'device:fabricpulse_nic_attribute:different{%s, instance=~"$instance", device=~"$device"}' % g.clusterMatcher(config); [
            g.query('topk(100, %s)' % different),
            // Recorded by the same group: it has been evaluated.
            g.noneOf('%s or %s' % [of('device:fabricpulse_nic_link_speed_bytes_per_second:' + which) for which in ['alike', 'other']], different, 'attribute', 'so many names of NICs'),
          ], [['instance', 'host'], ['device', 'device'], ['network', 'network'], ['attribute', 'attribute'], ['Value', 'value']]),
          g.table(config, 'Firmware', 'How many NICs of a board have which, and of the hosts chosen which have it.', 'none', [
            g.query('count by (%s, board, firmware) (%s)' % [config.clusterLabel, s.last('fabricpulse_nic_info', 'firmware!=""')]),
          ], [['board', 'board'], ['firmware', 'firmware'], ['Value', 'NICs']]) + g.only(pcie),
        ]),
        g.row('Host', [
          g.table(config, 'PCIe, the slowest', 'Lanes times speed, of what card and slot can do; the twenty lowest.', 'percentunit', [
            g.query('bottomk(20, max by (%s, instance, device) (%s))' % [config.clusterLabel, s.pcieShare()]),
          ], [['instance', 'host'], ['device', 'device'], ['Value', 'share']]) + g.only(pcie),
          g.table(config, 'GID index that NCCL would use', 'How many ports have which; NCCL takes one index for all ports of a host. More than one line: FabricNicOddOneOut names the odd ones.', 'none', [
            g.query('count_values("index", %s)' % s.series('fabricpulse_nic_nccl_gid_index')),
          ], [['index', 'GID index'], ['Value', 'ports']]) + g.only(rdma),
        ]),
      ]
    ),
  },
}
