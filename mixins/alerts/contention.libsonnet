// Congestion and its kin: who gets less of the network than it could, and why.
local lib = import '../lib/alerts.libsonnet';
local flows = import '../lib/flows.libsonnet';
local paths = import '../lib/paths.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    local f = flows(config),
    local p = paths(config),
    local nic = std.join(', ', [config.clusterLabel, 'instance', 'device']),
    local byNic(what, expr) = '%s by (%s) (%s)' % [what, nic, expr],
    groups+: lib.groups(config, 'contention', [
      lib.alert(
        config,
        'FabricPathContended',
        'warning',
        'plugin',
        f.contendedBySender,
        'A flow of a job is held up in a queue while its siblings are not.',
        'Flow {{ $labels.device }} of {{ $labels.instance }} to {{ $labels.peer_device }} of {{ $labels.peer }} (workload {{ $labels.workload }}) has {{ $value | printf "%.1f" }} times the one-way delay of the job\'s quick flows, and loses bandwidth or is marked: its path is shared.',
        { 'for': config.contentionFor, keep_firing_for: config.contentionKeepFiring, paced: true }
      ),
      lib.alert(
        config,
        'FabricJobsContend',
        'warning',
        'plugin',
        // In one network: those of two rails share no link. FabricPathContended, which names the flows, mutes it.
        'sum by (%(c)s, network) (group by (%(c)s, network, workload) (%(contended)s)) > 1' % { c: config.clusterLabel, contended: f.contendedPaths },
        'Several jobs are held up in queues at the same time.',
        '{{ $value | printf "%.0f" }} jobs have contended flows{{ with $labels.network }} in network {{ . }}{{ end }} at once: they may share links. FabricPathContended names the flows.',
        { 'for': config.contentionFor, paced: true }
      ),
      lib.alert(
        config,
        'FabricIncast',
        'warning',
        'plugin',
        // Not of a NIC that receives less than it usually can: then it is the NIC that is slow. `peer` and `peer_device` are
        // the receiving NIC, too: by them Alertmanager mutes the flows into it.
        'label_replace(label_replace(count by (%(nic)s, workload) (%(slow)s) >= %(senders)d unless on (%(nic)s) %(notFull)s, "peer", "$1", "instance", "(.+)"), "peer_device", "$1", "device", "(.+)")' % {
          nic: nic,
          slow: f.slow,
          senders: config.incastSenders,
          notFull: f.notFull,
        },
        'Many senders of a job meet at one NIC.',
        '{{ $value | printf "%.0f" }} flows of workload {{ $labels.workload }} into NIC {{ $labels.peer_device }} of {{ $labels.peer }} are slow together while others of the job are not.',
        { 'for': config.contentionFor, keep_firing_for: config.incastKeepFiring, paced: true }
      ),
      // The receiver itself is slow: it drops, pauses its sender, or its PCIe does not take what arrives.
      lib.alert(
        config,
        'FabricReceiverCongested',
        'warning',
        'nic',
        std.join(' or ', [
          byNic('max', '%s > %g' % [s.recentRate(['out_of_buffer_drops', 'rnr_nak_packets_sent', 'phy_discards', 'priority_discards', 'pcie_outbound_buffer_overflows']), config.receiverDropsPerSecond]),
          byNic('max', '%s > %g' % [s.last('fabricpulse_nic_pcie_outbound_stalled_writes_ratio'), config.pcieStalledRatio]),
          byNic('max', '%s > %g' % [s.recentRate(['pfc_pause_transmitted_seconds']), config.pausedRatio]),
        ]),
        'A host takes data more slowly than it arrives.',
        'NIC {{ $labels.device }} of {{ $labels.instance }} drops, holds back or cannot write to memory what it receives (worst figure {{ $value | printf "%.3g" }}): look at PCIe, NUMA placement and CPU of this host, not at the network.',
        { 'for': config.congestionFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricCongestionMarks',
        'warning',
        'nic',
        '%s / %s > %g' % [
          byNic('sum', s.recentRate(['ecn_marked_packets_received'])),
          byNic('sum', s.recentRate(['received_packets'])),
          config.ecnMarkedRatio,
        ] + ' or ' +
        byNic('sum', s.recentRate(['cnp_packets_handled'])) + ' > %g' % config.cnpPerSecond +
        ' or ' +
        byNic('sum', 'rate(%s[2m])' % s.series('fabricpulse_qp_ecn_marked_total')) + ' > %g' % config.cnpPerSecond,
        'Switches mark the traffic of a NIC as congested.',
        'NIC {{ $labels.device }} of {{ $labels.instance }} receives packets with the congestion mark, or is asked to slow down (CNPs), at {{ $value | printf "%.3g" }} (share of packets, or packets a second).',
        { 'for': config.congestionFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricPaused',
        'warning',
        'nic',
        // By its network a storm mutes it.
        p.networked(
          byNic('max', '%s > %g' % [s.recentRate(['pfc_pause_received_seconds', 'global_pause_received_seconds']), config.pausedRatio]) +
          ' or ' + byNic('max', '%s > %g' % [s.recentRate(['pfc_pause_frames_received']), config.pauseFramesPerSecond])
        ),
        'Pause frames keep a NIC from sending.',
        'The switch stops NIC {{ $labels.device }} of {{ $labels.instance }} by pause frames ({{ $value | printf "%.3g" }}: share of time, or frames a second).',
        { 'for': config.congestionFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricPauseStorm',
        'critical',
        'nic',
        p.networked(
          byNic('max', '%s > %g' % [s.recentRate(['pfc_pause_transmitted_seconds']), config.pauseStormRatio]) +
          ' or ' + byNic('max', s.recentIncrease(['pause_storm_warning_events', 'pause_storm_error_events']) + ' > 0')
        ),
        'A NIC stops the network with pause frames.',
        'NIC {{ $labels.device }} of {{ $labels.instance }} keeps pausing its switch port ({{ $value | printf "%.3g" }}: share of time, or storms that its watchdog saw); the pause spreads to all who share the switch\'s buffers.'
      ),
      lib.alert(
        config,
        'FabricRailImbalance',
        'warning',
        'plugin',
        local rate = 'device:fabricpulse_qp_sent_bytes:rate2m' + s.braces;
        local group = '%s, instance, workload' % config.clusterLabel;
        // Not while something else is the cause, which has an alert of its own: a contended flow of the job, or one whose
        // path the job has left, a lane that is down or that remediation avoids, of whichever host: its neighbours send less to it, too.
        '1 - min by (%(group)s) (%(rate)s) / (max by (%(group)s) (%(rate)s) > %(least)g) > %(ratio)g unless on (%(job)s) (%(contended)s or %(still)s) unless on (%(job)s) (%(down)s == 0 or %(avoided)s > 0)' % {
          group: group,
          job: '%s, workload' % config.clusterLabel,
          rate: rate,
          least: config.imbalanceLeastBytesPerSecond,
          ratio: config.imbalanceRatio,
          contended: f.contended,
          still: f.contendedOnPaths,
          down: s.series('fabricpulse_lane_state'),
          avoided: s.series('fabricpulse_lane_nic_avoided'),
        },
        'A job uses the NICs of a host unevenly.',
        'The least used NIC of workload {{ $labels.workload }} on {{ $labels.instance }} sends {{ $value | humanizePercentage }} less than the most used one.',
        { 'for': config.imbalanceFor, seldom: true }
      ),
      lib.alert(
        config,
        'FabricBandwidthBelowNormal',
        'warning',
        'plugin',
        '%s < %g * quantile_over_time(0.5, workload:fabricpulse_collective_bandwidth_bytes_per_second:avg%s[1h] offset 5m)' % [
          'workload:fabricpulse_collective_bandwidth_bytes_per_second:avg' + s.braces,
          config.bandwidthNormalRatio,
          s.braces,
        ],
        "A job's collectives are slower than they were an hour ago.",
        '{{ $labels.collective }} of workload {{ $labels.workload }} runs at {{ $value | humanize }}B/s, less than its own median of the hour before.',
        { 'for': config.bandwidthFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricBandwidthBelowFleet',
        'info',
        'plugin',
        f.belowFleet,
        "A job's collectives are slower than those of other jobs.",
        '{{ $labels.collective }} ({{ $labels.size }} messages) of workload {{ $labels.workload }} has {{ $value | humanizePercentage }} of the bandwidth that the median job has with such sizes.',
        { 'for': config.bandwidthFor, slow: true }
      ),
    ]),
  },
}
