// What NICs, links and slots say of themselves, and what is different from the rest of the fleet.
local lib = import '../lib/alerts.libsonnet';
local paths = import '../lib/paths.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    local c = config.clusterLabel,
    local window = '15m',  // INCREASE_S of the NIC exporter
    local nic = '%s, instance, device' % c,
    local increased(name, threshold) = 'max by (%s) (%s%s)' % [nic, s.recentIncrease([name]), threshold],
    local kind(expr, name) = 'label_replace(%s, "kind", "%s", "", "")' % [expr, name],
    local kinds(rows, threshold) = std.join(' or ', [kind(increased(row[0], threshold), row[1]) for row in rows]),
    // A number that fewer than oddShare of the NICs of a network have and that is not the fleet's median. One alone is odd among oddLeastNics.
    local odd =
      local known = 'device:fabricpulse_nic_attribute:by_network' + s.braces;
      local group = '%s, network, attribute' % c;
      '%(different)s and on (%(group)s) count by (%(group)s) (%(different)s) < clamp_min(%(share)g * (count by (%(group)s) (%(known)s) >= %(least)d), 1.5)' % {
        different: 'device:fabricpulse_nic_attribute:different' + s.braces,
        known: known,
        group: group,
        share: config.oddShare,
        least: config.oddLeastNics,
      },
    groups+: lib.groups(config, 'hardware', [
      lib.alert(
        config,
        'FabricRetriesExceeded',
        'critical',
        'nic',
        // Who sends to a NIC or a host that has died uses up its retries, and the death has an alert of its own. Who sends to it
        // is not known of jobs over NCCL's own transport, so a death explains what its network, or all hosts, use up until it is
        // known and for some minutes more: of a counter that tells of a quarter of an hour only what has just been added.
        local added = '2m';  // above retriesExceededFor, and two scrapes at least
        local within = '5m';  // the same, until the last retries are used up, and until the counter is scraped
        local deaths(name) =
          local died = 'last_over_time(%s[%s]' % [s.series('ALERTS', 'alertname=~"%s", alertstate="firing"' % name), within];
          '(%(died)s) unless %(died)s offset %(within)s))' % { died: died, within: within };
        local counter = s.series('fabricpulse_nic_recent_increase', 'counter="transport_retries_exceeded"');
        local most(offset) = 'max by (%s) (last_over_time(%s[%s]%s))' % [nic, counter, config.lastValueWindow, offset];
        local used = kind(most('') + ' > 0', 'transport');
        // Once it fires, for as long as the counter tells of it.
        local transport = '(%(used)s unless on (%(nic)s) %(before)s >= on (%(nic)s) %(now)s or %(used)s and on (%(nic)s) %(fires)s)' % {
          used: used,
          nic: nic,
          before: most(' offset ' + added),
          now: most(''),
          fires: s.series('ALERTS', 'alertname="FabricRetriesExceeded", alertstate="firing", kind="transport"'),
        };
        '(%(transport)s) unless on (%(c)s, network) %(nics)s unless on (%(c)s) %(hosts)s or %(rnr)s' % {
          c: c,
          nics: deaths('FabricNicDisconnected|FabricNetworkDown'),
          hosts: deaths('FabricHostDown'),
          transport: paths(config).networked(transport),
          rnr: kinds([['rnr_retries_exceeded', 'receiver not ready']], ' > 0'),
        },
        'Queue pairs have ended because their retries were used up.',
        '{{ $value | printf "%.0f" }} queue pairs of NIC {{ $labels.device }} of {{ $labels.instance }} gave up ({{ $labels.kind }}): with NCCL\'s own transport the job has ended.',
        { 'for': config.retriesExceededFor, paced: true }
      ),
      lib.alert(
        config,
        'FabricFecUncorrectable',
        'warning',
        'nic',
        kinds([
          ['fec_uncorrectable_blocks', 'code words'],
          ['phy_pcs_symbol_errors', 'symbols'],
        ], ' > 0'),
        'A link has errors that forward error correction cannot correct.',
        'The link of {{ $labels.device }} of {{ $labels.instance }} lost {{ $value | printf "%.0f" }} {{ $labels.kind }} within ' + window + ': cable, module or port.',
        { slow: true }
      ),
      lib.alert(
        config,
        'FabricLinkErrors',
        'warning',
        'nic',
        kinds([
          ['symbol_errors', 'symbol errors'],
          ['link_crc_errors', 'CRC errors'],
          ['phy_crc_errors', 'CRC errors at the PHY'],
          ['icrc_errors', 'invariant CRC errors'],
          ['link_error_recovery', 'link error recoveries'],
        ], ' >= %d' % config.linkErrorThreshold),
        'A link damages packets.',
        '{{ $labels.device }} of {{ $labels.instance }} counted {{ $value | printf "%.0f" }} {{ $labels.kind }} within ' + window + '.',
        { slow: true }
      ),
      lib.alert(
        config,
        'FabricIbLinkDowned',
        'warning',
        'nic',
        // Not where the NIC was paged within that time: this is the link's part of it. By the page, not by what the mesh exporter saw: a NIC
        // that was back before a scrape, or whose page is disabled, is reported here alone.
        local paged = '20m';  // above `window`
        '%s unless on (%s) last_over_time(%s[%s])' % [
          increased('link_downed', ' > 0'),
          nic,
          s.series('ALERTS', 'alertname="FabricNicDisconnected", alertstate="firing"'),
          paged,
        ],
        'An InfiniBand link went down and trained again.',
        'The link of {{ $labels.device }} of {{ $labels.instance }} went down {{ $value | printf "%.0f" }} times within ' + window + ' (LinkDowned).',
        { 'for': config.linkDownedFor, slow: true }
      ),
      // Ticks have a unit of the device's own: only NICs of one fleet can be compared.
      lib.alert(
        config,
        'FabricIbCongested',
        'warning',
        'nic',
        // Exporters tell of those that have waited lately alone: their median is not the fleet's, which is 0 where fewer than half wait. How many count
        // it at all must be known to say that these are few: recorded, and not where most exporters are too old to tell (rules/hardware.libsonnet).
        local rate = 'max by (%s) (%s)' % [nic, s.recentRate(['transmit_wait_ticks'])];
        // Its last value, also where one evaluation of it was missed.
        local all = 'last_over_time(cluster:fabricpulse_nic_transmit_wait_ticks:count%s[10m])' % s.braces;
        '%(rate)s > 1e6 and on (%(c)s) %(all)s unless on (%(nic)s) (%(rate)s <= on (%(c)s) group_left () (10 * quantile by (%(c)s) (0.5, %(rate)s)) and on (%(c)s) count by (%(c)s) (%(rate)s) >= on (%(c)s) (0.5 * %(all)s))' % {
          rate: rate,
          nic: nic,
          c: c,
          all: all,
        },
        'An InfiniBand port waits for credits far longer than others.',
        'Port of {{ $labels.device }} of {{ $labels.instance }} had data and no credits for {{ $value | humanize }} ticks a second (XmitWait), over ten times the median of those that wait, or fewer than half of all wait.',
        { 'for': config.congestionFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricNicGone',
        // That it reaches no peer has been paged a minute before; this is the cause.
        'warning',
        'nic',
        // Once, whichever pod says it, also one that has been replaced.
        'max by (%s, job, pci_address) (%s) == 0' % [nic, s.last('fabricpulse_nic_present')],
        'A NIC has gone from its host.',
        'NIC {{ $labels.device }} of {{ $labels.instance }} ({{ $labels.pci_address }}) is not on the PCIe bus any more, or has lost its driver ({{ $value }}).',
        { 'for': config.nicGoneFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricPortsMissing',
        'critical',
        'nic',
        local most(name) = 'max by (%s, job, instance) (%s)' % [c, s.last(name)];
        '%s < %s' % [most('fabricpulse_nic_expected_ports_up'), most('fabricpulse_nic_expected_ports')],
        'A host has fewer ports at full speed than it should have.',
        'Only {{ $value | printf "%.0f" }} of the ports that {{ $labels.instance }} should have are active at the expected rate.',
        { 'for': config.nicGoneFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricNicOddOneOut',
        'warning',
        'nic',
        odd + ' or label_replace(group by (%(nic)s, board, firmware) (%(info)s and on (%(group)s) (%(count)s < on (%(all)s) group_left () clamp_min(%(share)g * (sum by (%(all)s) (%(count)s) >= %(least)d), 1.5))), "attribute", "firmware", "", "")' % {
          nic: nic,
          info: s.last('fabricpulse_nic_info', 'firmware!=""'),
          count: 'firmware:fabricpulse_nic_info:count' + s.braces,
          group: '%s, board, firmware' % c,
          all: '%s, board' % c,
          share: config.oddShare,
          least: config.oddLeastNics,
        },
        'A NIC is set up differently from the rest of the fleet.',
        '{{ $labels.attribute }} of NIC {{ $labels.device }} of {{ $labels.instance }} is not what the others have ({{ if $labels.firmware }}{{ $labels.firmware }}{{ else }}{{ $value }}{{ end }}).',
        { 'for': config.oddFor, rare: true }
      ),
      lib.alert(
        config,
        'FabricGidRoceV1',
        'critical',
        'nic',
        // GIDs of InfiniBand ports are of a type of the same name, and what has no type is not known to be of v1.
        'group by (%s, rdma_device, port, index, gid_type) (%s)' % [
          nic,
          s.last('fabricpulse_nic_nccl_gid_info', 'gid_type!~"|.*[vV]2.*", address_family!="infiniband"'),
        ],
        'NCCL would use a GID of RoCE v1.',
        'The GID at index {{ $labels.index }} of {{ $labels.rdma_device }} ({{ $labels.device }}) of {{ $labels.instance }}, which NCCL takes, is of type {{ $labels.gid_type }} ({{ $value }}): its packets are not routed and take other paths than RoCE v2.',
        { 'for': config.gidInconsistentFor, seldom: true }
      ),
      lib.alert(
        config,
        'FabricNicFault',
        'warning',
        'nic',
        'sum by (%s, kind) (%s) > 0' % [
          nic,
          s.last('fabricpulse_nic_recent_increase', 'counter="kernel_messages", kind=~"transmit_timeout|insufficient_power|high_temperature|module_unplugged|module_error|command_timeout|health"'),
        ],
        'The kernel log reports a fault of a NIC.',
        'The kernel of {{ $labels.instance }} logged {{ $value | printf "%.0f" }} lines about {{ $labels.device }} of kind {{ $labels.kind }}.',
        { slow: true }
      ),
    ]),
  },
}
