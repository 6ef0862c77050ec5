// Recorded per edge: only those that lose packets or are slow, which are few. Alerts read them several times over.
local flows = import '../lib/flows.libsonnet';
local paths = import '../lib/paths.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local config = $._config,
    local s = signals(config),
    local p = paths(config),
    local edge = p.edge,
    local host = config.clusterLabel + ', instance',
    local network = config.clusterLabel + ', network',
    local slowest = 'device:fabricpulse_edge_latency_elevated:slowest' + s.braces,
    local f = flows(config),
    local receivingSlow = s.series('device:fabricpulse_edge_latency_elevated:count', 'direction="receive"'),
    local increase(name) = 'increase(%s[%s])' % [s.series(name), config.pathLossWindow],
    local lost = p.lost,
    // A queue that comes and goes with the rounds of a job meets the probes of some peers for some seconds and those of
    // others not: what many slow edges have shared is shared for as long as one of them is slow, if it was seen twice.
    local receivingEdges = 'device:fabricpulse_edge_latency_elevated:receiving_edges' + s.braces,
    local sendingEdges = 'peer:fabricpulse_edge_latency_elevated:sending_edges' + s.braces,
    local many(edges) = '%s >= %d' % [edges, config.sharedEdges],
    local receivingMany = 'device:fabricpulse_edge_latency_elevated:receiving_many' + s.braces,
    local sendingMany = 'peer:fabricpulse_edge_latency_elevated:sending_many' + s.braces,
    // Not one whose other end has many now: that is why it is slow.
    local alone = p.slowAlone,
    local manyOrLately(nic, edges, record) = '%s or sum by (%s) (%s) and on (%s) count_over_time(%s[%s]) >= 2' % [many(edges), nic, alone, nic, record, config.pathLossWindow],
    local recentlySlow = 'last_over_time(device:fabricpulse_edge_latency_elevated:count%s[%s])' % [s.braces, config.pathLossWindow],
    // Without the network label where nobody says which network a NIC is in.
    local named(nics) =
      local key = '%s, instance, device' % config.clusterLabel;
      '(%(nics)s) * on (%(key)s) group_left (network) %(network)s or on (%(key)s, direction) %(nics)s' % {
        nics: nics,
        key: key,
        network: p.slowPlaces,
      },
    groups+: [
      {
        // Where NICs are changes with cables. A host that is new has no network in its alerts for as long.
        name: 'fabricpulse-leaf.rules',
        interval: config.rareInterval,
        rules: [
          {
            record: 'device:fabricpulse_nic_network:info',
            // One, also while a NIC gets another network: a join with two of them fails for all NICs.
            expr: 'topk by (%s) (1, group by (%s, network) (%s))' % [p.own, p.own, s.nicConnected],
          },
          {
            // With the leaf, where it is known. One, as above: while a NIC gets another network and leaf it may be the one here and the other there.
            record: 'device:fabricpulse_nic_place:info',
            expr: 'topk by (%(own)s) (1, group by (%(own)s, network, leaf) (%(nics)s)) or on (%(own)s) %(networks)s' % {
              own: p.own,
              nics: s.last('fabricpulse_nic_connected', 'leaf!=""'),
              networks: p.networks,
            },
          },
          {
            record: 'leaf:fabricpulse_nic_place:count',
            expr: 'sum by (%s, leaf) (%s)' % [network, s.series('device:fabricpulse_nic_place:info', 'leaf!=""')],
          },
          {
            // For alerts on whole hosts, which need no read of each NIC then.
            record: 'host:fabricpulse_nic_network:count',
            expr: 'sum by (%s) (%s)' % [host, p.networks],
          },
          { record: 'host:fabricpulse_up:count', expr: 'count by (%s) (%s)' % [host, s.series('up', config.jobSelector)] },
          // Of nearly all fleets a table with a row for each name of a NIC, not for each NIC: the names that are in one network on every
          // host that has NICs here, and the NICs of the others.
          { record: 'device:fabricpulse_nic_network:alike', expr: p.networksAlike },
          { record: 'device:fabricpulse_nic_network:other', expr: '%s unless on (%s, device) %s' % [p.networks, config.clusterLabel, p.networkOfName] },
        ],
      },
      {
        name: 'fabricpulse-path.rules',
        rules: [
          {
            record: 'edge:fabricpulse_edge_probes_lost:increase',
            expr: 'sum by (%s) (%s > 0)' % [edge, increase('fabricpulse_edge_probes_lost_total')],
          },
          {
            record: 'edge:fabricpulse_edge_probes_lost:lossy_ratio',
            expr: '%s / (%s + %s) > %g and on (%s) %s >= %d unless on (%s) %s' % [
              lost,
              lost,
              'sum by (%s) (%s and on (%s) %s)' % [edge, increase('fabricpulse_edge_probes_received_total'), edge, lost],
              config.pathLossRatio,
              edge,
              lost,
              config.pathLossLeast,
              edge,
              p.silent,
            ],
          },
          {
            // Of these, and of those some of whose paths lose packets, the ones that are or were slow. Where a network is slow its slow edges
            // are many: they are read here once.
            record: 'edge:fabricpulse_edge_latency_elevated:of_lossy',
            expr: 'group by (%s) (max_over_time(%s[%s]) == 1 and on (%s) (%s or %s))' % [edge, s.series('fabricpulse_edge_latency_elevated'), config.pathLossWindow, edge, p.lossy, s.last('fabricpulse_edge_worst_path_loss_ratio')],
          },
          {
            record: 'edge:fabricpulse_edge_probes_lost:lossy_alone_ratio',
            // Nor at a NIC that many slow edges share, or a moment after: its queue comes and goes with the traffic, and drops
            // what comes by its other edges before their delay is known to have grown.
            local lately(slow) = 'last_over_time(%s[%s])' % [slow, config.pathLossWindow],
            expr: '%s unless on (%s) %s unless on (%s) %s unless on (%s) %s' % [p.lossy, edge, p.lossyAndSlow, p.own, lately(p.receiving), p.peer, lately(p.sending)],
          },
          { record: 'edge:fabricpulse_edge_mtu_black_hole_bytes:min', expr: p.blackHolesSaid },
          {
            // Edges of a NIC on which some paths are dead. FabricPathDown, with the leaf and without, would count them twice.
            record: 'device:fabricpulse_edge_paths_down:count',
            expr: 'count by (%s) (%s > 0)' % [p.own, s.last('fabricpulse_edge_paths_down')],
          },
          {
            // Edges of a NIC some of whose paths lose packets.
            record: 'device:fabricpulse_edge_worst_path_loss:count',
            expr: 'count by (%s) (%s unless on (%s) %s unless on (%s) %s)' % [p.own, p.lossyPaths, edge, p.lossyAndSlow, edge, p.silent],
          },
          // Before what names these NICs, and for longer: no alert may be without its network for a moment.
          { record: 'device:fabricpulse_nic_place:faulty', expr: p.placesOf([p.lossyAlone, p.blackHoles], [record + s.braces for record in ['device:fabricpulse_edge_paths_down:count', 'device:fabricpulse_edge_worst_path_loss:count']]) },
          { record: 'edge:fabricpulse_edge_probes_lost:receiver_to_sender_ratio', expr: p.balance(p.lossyAlone) },
          { record: 'device:fabricpulse_edge_probes_lost:lossy_ratio', expr: p.unexplained(p.lossyAlone, p.lossyBalance, 'max') },
          { record: 'device:fabricpulse_edge_probes_lost:lossy_by_themselves_ratio', expr: p.unexplainable(p.lossyAlone, p.lossyBalance, 'max') },
          { record: 'device:fabricpulse_edge_probes_lost:lossy_as_peers_ratio', expr: '%s unless on (%s, direction) %s' % [p.lossyNics, p.own, p.lossyByThemselves] },
          { record: 'network:fabricpulse_edge_probes_lost:lossy_nics', expr: p.networksOf(p.lossyAsPeers, config.networkLossyLeastNics, config.networkLossyShare) },
          {
            // A lossy leaf has few of the NICs of a large network, and all of its own.
            record: 'leaf:fabricpulse_edge_probes_lost:lossy_nics',
            expr: p.leavesOf(p.lossyAsPeers, config.networkLossyLeastNics, config.networkLossyShare, p.lossyNetworks),
          },
          { record: 'edge:fabricpulse_edge_mtu_black_hole_bytes:receiver_to_sender_ratio', expr: p.balance(p.blackHoles) },
          { record: 'device:fabricpulse_edge_mtu_black_hole_bytes:min', expr: p.anyDirection(p.unexplained(p.blackHoles, p.blackHoleBalance, 'min'), 'min') },
          {
            record: 'device:fabricpulse_edge_mtu_black_hole_bytes:as_peers',
            expr: '%s unless on (%s) %s' % [p.blackHoleNics, p.own, p.explaining(p.blackHoleBalance)],
          },
          { record: 'network:fabricpulse_edge_mtu_black_hole_bytes:nics', expr: p.networksOf(p.blackHolesAsPeers, config.networkLossyLeastNics, config.networkLossyShare) },
        ],
      },
      {
        // What waits for half a minute anyway reads these.
        name: 'fabricpulse-slow-edge.rules',
        interval: config.flowInterval,
        rules: [
          {
            record: 'edge:fabricpulse_edge_latency_elevated:max',
            expr: 'group by (%s) (%s == 1)' % [edge, s.last('fabricpulse_edge_latency_elevated')],
          },
          {
            // Delay of the edges that are slow, s. Where a scrape has failed it is not known.
            record: 'edge:fabricpulse_edge_owd_seconds:slow',
            expr: 'min by (%s) (%s and on (%s) %s)' % [edge, s.series('fabricpulse_edge_owd_seconds', 'quantile="0.5"'), edge, p.elevated],
          },
          // NICs that many slow edges have in common. Where a network is slow these edges are most of what the rules read:
          // each pass over them counts.
          // How many slow edges each has.
          { record: 'device:fabricpulse_edge_latency_elevated:receiving_edges', expr: 'sum by (%s) (%s)' % [p.own, p.elevated] },
          { record: 'peer:fabricpulse_edge_latency_elevated:sending_edges', expr: 'sum by (%s) (%s)' % [p.peer, p.elevated] },
          { record: 'device:fabricpulse_edge_latency_elevated:receiving_many', expr: many(receivingEdges) },
          { record: 'peer:fabricpulse_edge_latency_elevated:sending_many', expr: many(sendingEdges) },
          // Slow edges of no such NIC: few, also where a whole network is slow.
          { record: 'edge:fabricpulse_edge_latency_elevated:alone', expr: '%s unless on (%s) %s unless on (%s) %s' % [p.elevated, p.own, receivingMany, p.peer, sendingMany] },
          { record: 'device:fabricpulse_edge_latency_elevated:receiving', expr: manyOrLately(p.own, receivingEdges, receivingMany) },
          { record: 'peer:fabricpulse_edge_latency_elevated:sending', expr: manyOrLately(p.peer, sendingEdges, sendingMany) },
          {
            record: 'device:fabricpulse_edge_owd_seconds:slow_min',
            expr: p.directed(
              'min by (%s) (%s) and on (%s) %s' % [p.own, p.slowDelay, p.own, p.receiving],
              'min by (%s) (%s) and on (%s) %s' % [p.peer, p.slowDelay, p.peer, p.sending],
            ),
          },
          // Of those at the end of an edge alone, too: FabricEdgeSlow.
          { record: 'device:fabricpulse_nic_place:slow', expr: p.placesOf([], [alone, p.receiving], [p.sending]) },
          { record: 'device:fabricpulse_edge_latency_elevated:count', expr: named('(%s)' % p.directed(p.receiving, p.sending)) },
          // What of the flows' NICs is asked further: those with slow edges or slow flows.
          { record: 'nic:fabricpulse_qp_received_bytes:slow_rate', expr: f.slowRateOfNic(receivingSlow) },
          { record: 'nic:fabricpulse_qp_received_bytes:peak_ratio', expr: f.shareOfPeak },
          {
            // NICs that receive as much as they can, bytes/s: what waits there waits for a full link, not a slow one.
            record: 'device:fabricpulse_edge_latency_elevated:full_rate',
            expr: 'label_replace(%s and on (%s) (%s), "direction", "receive", "", "")' % [f.slowNicRate, p.own, f.full(receivingSlow)],
          },
          {
            // Slow NICs over which flows come whose delay is measured.
            record: 'device:fabricpulse_edge_latency_elevated:measured',
            expr: 'device:fabricpulse_edge_latency_elevated:count%s and on (%s) flow:fabricpulse_qp_owd_seconds:p50_2m%s' % [s.braces, p.own, s.braces],
          },
          {
            // NICs that may be what is slow. Of those of a host none that moves more than another slow one: what a job no longer
            // gets over one it sends over the others, whose queues grow, and may grow longer. Where many edges were slow a moment ago,
            // as many had to be while it was such a NIC: what is left of a full link's queue is no sign of a slow one.
            record: 'device:fabricpulse_edge_latency_elevated:suspects',
            expr: '(%(count)s and on (%(nic)s, direction) (%(many)s) or %(count)s and on (%(nic)s, direction) count_over_time(device:fabricpulse_edge_latency_elevated:suspects%(braces)s[%(window)s]) >= 2) unless on (%(nic)s) (%(rate)s > on (%(host)s) group_left () (%(factor)g * min by (%(host)s) (%(rate)s))) unless on (%(nic)s, direction) %(full)s' % {
              braces: s.braces,
              window: config.pathLossWindow,
              many: p.directed(receivingMany, sendingMany),
              count: 'device:fabricpulse_edge_latency_elevated:count' + s.braces,
              full: 'device:fabricpulse_edge_latency_elevated:full_rate' + s.braces,
              rate: 'device:fabricpulse_nic_bytes:slow_rate' + s.braces,
              factor: config.busiestNicFactor,
              nic: p.own,
              host: host,
            },
          },
          {
            // Of these of a host the slowest, and those that are about as slow.
            record: 'device:fabricpulse_edge_latency_elevated:slowest',
            expr: '%(suspects)s unless on (%(nic)s, direction) (%(factor)g * %(delay)s < on (%(host)s, direction) group_left () max by (%(host)s, direction) (%(delay)s and on (%(nic)s, direction) %(suspects)s))' % {
              suspects: 'device:fabricpulse_edge_latency_elevated:suspects' + s.braces,
              delay: 'device:fabricpulse_edge_owd_seconds:slow_min' + s.braces,
              factor: config.slowestNicFactor,
              nic: p.own,
              host: host,
            },
          },
          {
            // Where no flow is measured nothing else would name what they share.
            record: 'network:fabricpulse_edge_latency_elevated:slow_hosts',
            expr: 'sum by (%(network)s) (group by (%(network)s, instance) (%(named)s)) >= 2 and on (%(network)s) (%(named)s and on (%(nic)s) device:fabricpulse_edge_latency_elevated:measured%(braces)s)' % {
              network: network,
              named: s.series('device:fabricpulse_edge_latency_elevated:slowest', 'network!=""'),
              nic: p.own,
              braces: s.braces,
            },
          },
          {
            // Those of the slowest that are slow by themselves: not while NICs of other hosts of their network are slow, too, until
            // FabricPathContended can have come, and not while it fires; those that were slow so long ago in any case, and those whose
            // alert fires: NICs that become slow later would end it and page it again.
            record: 'device:fabricpulse_edge_latency_elevated:unshared',
            expr: '%(slowest)s unless on (%(network)s) %(lately)s unless on (%(network)s) (%(contended)s and on (%(network)s) %(before)s) or %(slowest)s unless on (%(network)s) %(contended)s and on (%(nic)s, direction) %(waited)s or %(slowest)s and on (%(nic)s, direction) (%(held)s or %(fires)s)' % {
              slowest: slowest,
              network: network,
              nic: p.own,
              lately: 'last_over_time(%s[%s])' % [p.slowHosts, config.pathLossWindow],
              before: 'last_over_time(%s[%s])' % [p.slowHosts, config.nicSlowHold],
              contended: 'last_over_time(%s[%s])' % [s.series('ALERTS', 'alertname="FabricPathContended", alertstate="firing"'), config.pathLossWindow],
              waited: 'last_over_time(%s[%s] offset %s)' % [slowest, config.pathLossWindow, config.nicSlowWait],
              held: 'last_over_time(%s[%s] offset %s)' % [slowest, config.pathLossWindow, config.nicSlowHold],
              fires: s.series('ALERTS', 'alertname="FabricNicSlow", alertstate="firing"'),
            },
          },
        ],
      },
      {
        name: 'fabricpulse-busy.rules',
        interval: config.flowInterval,
        rules: [
          {
            // What the slow NICs of a host move, and those that were slow a moment ago, bytes/s.
            record: 'device:fabricpulse_nic_bytes:slow_rate',
            expr: 'max by (%s) (%s and on (%s) %s)' % [p.own, s.last('fabricpulse_nic_recent_bytes_per_second'), p.own, recentlySlow],
          },
        ],
      },
    ],
  },
}
