// Expressions on edges: from the NIC of a peer to a NIC of this host. What several edges share is named instead of each.
local signals = import '../signals.libsonnet';
function(config) {
  local s = signals(config),
  local c = config.clusterLabel,
  local edge = '%s, instance, device, peer, peer_device' % c,
  local own = '%s, instance, device' % c,
  local peer = '%s, peer, peer_device' % c,
  edge:: edge,
  // The network of each NIC, and with its leaf; and of the few NICs with lossy edges, black holes or dead paths, and with slow
  // edges. To read those of all NICs is a good part of what a rule costs.
  networks:: 'device:fabricpulse_nic_network:info' + s.braces,
  places:: 'device:fabricpulse_nic_place:info' + s.braces,
  local faultyPlaces = 'device:fabricpulse_nic_place:faulty' + s.braces,
  slowPlaces:: 'device:fabricpulse_nic_place:slow' + s.braces,
  own:: own,
  peer:: peer,
  // Places of NICs at either end of some edges, now or lately: what is said of these NICs must not lose its network before it ends.
  local lately(record) = 'last_over_time(%s[%s])' % [record, config.lastValueWindow],
  local sender(edges) = 'label_replace(label_replace(group by (%s) (%s), "instance", "$1", "peer", "(.*)"), "device", "$1", "peer_device", "(.*)")' % [peer, edges],
  placesOf(edges, nics, peers=[]):: '%s and on (%s) (%s)' % [
    $.places,
    own,
    std.join(' or ', [lately(record) for record in edges + nics] + [sender(lately(record)) for record in edges + peers]),
  ],

  // What is recorded (rules/path.libsonnet).
  lost:: 'edge:fabricpulse_edge_probes_lost:increase' + s.braces,
  lossy:: 'edge:fabricpulse_edge_probes_lost:lossy_ratio' + s.braces,
  elevated:: 'edge:fabricpulse_edge_latency_elevated:max' + s.braces,
  // Edges some of whose paths lose packets; and lossy ones, or such, that are or were slow.
  lossyPaths:: '%s > %g' % [s.last('fabricpulse_edge_worst_path_loss_ratio'), config.pathLossRatio],
  lossyAndSlow:: 'edge:fabricpulse_edge_latency_elevated:of_lossy' + s.braces,
  // Lossy without being slow. What a queue drops waits in it first: that is congestion or a slow link, which has its own alert.
  lossyAlone:: 'edge:fabricpulse_edge_probes_lost:lossy_alone_ratio' + s.braces,
  // By how many times more lossy edges its receiver has than its sender has: who has many more explains it alone.
  lossyBalance:: 'edge:fabricpulse_edge_probes_lost:receiver_to_sender_ratio' + s.braces,
  balance(edges):: '(0 * %(edges)s + on (%(own)s) group_left () count by (%(own)s) (%(edges)s)) / on (%(peer)s) group_left () count by (%(peer)s) (%(edges)s)' % { edges: edges, own: own, peer: peer },
  // NICs that at least sharedEdges lossy edges have in common which no other NIC explains, and those of them whose edges
  // nobody else could explain: where all NICs lose packets alike that is none.
  lossyNics:: s.series('device:fabricpulse_edge_probes_lost:lossy_ratio'),
  lossyByThemselves:: 'device:fabricpulse_edge_probes_lost:lossy_by_themselves_ratio' + s.braces,
  // As many edges of other NICs have it: a switch or a link that all cross, rather than any of them.
  lossyAsPeers:: 'device:fabricpulse_edge_probes_lost:lossy_as_peers_ratio' + s.braces,
  lossyNetworks:: 'network:fabricpulse_edge_probes_lost:lossy_nics' + s.braces,
  lossyLeaves:: 'leaf:fabricpulse_edge_probes_lost:lossy_nics' + s.braces,
  local bySender(edges, balance) = '%s unless on (%s) %s < %g' % [edges, edge, balance, 1 / config.explainedFactor],
  local byReceiver(edges, balance) = '%s unless on (%s) %s > %g' % [edges, edge, balance, config.explainedFactor],
  local ofReceiver(edges, balance) = '%s and on (%s) %s > %g' % [edges, edge, balance, config.explainedFactor],
  local ofSender(edges, balance) = '%s and on (%s) %s < %g' % [edges, edge, balance, 1 / config.explainedFactor],
  unexplained(edges, balance, worst):: $.nics(bySender(edges, balance), worst, byReceiver(edges, balance)),
  unexplainable(edges, balance, worst):: $.nics(ofReceiver(edges, balance), worst, ofSender(edges, balance)),
  // NICs that explain at least sharedEdges of their edges, whichever the direction.
  explaining(balance)::
    local many(nic, which) = 'sum by (%s) (%s %s) >= %d' % [nic, balance, which, config.sharedEdges];
    '(%s or %s)' % [
      many(own, '> bool %g' % config.explainedFactor),
      'label_replace(label_replace(%s, "instance", "$1", "peer", "(.*)"), "device", "$1", "peer_device", "(.*)")' % many(peer, '< bool %g' % (1 / config.explainedFactor)),
    ],
  // Networks with at least `least` such NICs, where these are at least `share` of the network's NICs: how many. One bad uplink of a
  // large network makes few.
  networksOf(nics, least, share):: 'sum by (%(network)s) (group by (%(own)s, network) (%(nics)s * on (%(own)s) group_left (network) %(places)s)) >= %(least)d >= on (%(network)s) (%(share)g * network:fabricpulse_nic_connected:count%(braces)s)' % {
    network: c + ', network',
    own: own,
    nics: nics,
    places: faultyPlaces,
    least: least,
    share: share,
    braces: s.braces,
  },
  // The same of leaves, of networks that are not such.
  local leaf = c + ', network, leaf',
  leavesOf(nics, least, share, networks):: 'sum by (%(leaf)s) (group by (%(own)s, network, leaf) (%(nics)s * on (%(own)s) group_left (network, leaf) %(places)s)) >= %(least)d >= on (%(leaf)s) (%(share)g * leaf:fabricpulse_nic_place:count%(braces)s) unless on (%(network)s) %(networks)s' % {
    leaf: leaf,
    network: c + ', network',
    own: own,
    nics: nics,
    places: s.series('device:fabricpulse_nic_place:faulty', 'leaf!=""'),
    least: least,
    share: share,
    braces: s.braces,
    networks: networks,
  },
  notInLeaves(nics, leaves):: '%s unless on (%s) (%s and on (%s) %s)' % [nics, own, faultyPlaces, leaf, leaves],
  // With the network of each alone.
  inNetwork(nics):: '%s * on (%s) group_left (network) %s' % [nics, own, faultyPlaces],
  // NICs that are not in such a network.
  notInNetworks(nics, networks):: '%s unless on (%s) (%s and on (%s, network) %s)' % [nics, own, faultyPlaces, c, networks],
  // Slow edges of no NIC that has many, now or lately.
  slowAlone:: 'edge:fabricpulse_edge_latency_elevated:alone' + s.braces,
  slowSingle:: '%s unless on (%s) %s unless on (%s) %s' % [$.slowAlone, own, $.receiving, peer, $.sending],
  slowDelay:: 'edge:fabricpulse_edge_owd_seconds:slow' + s.braces,
  receiving:: 'device:fabricpulse_edge_latency_elevated:receiving' + s.braces,
  sending:: 'peer:fabricpulse_edge_latency_elevated:sending' + s.braces,

  // Networks in which NICs of several hosts are slow together: how many hosts.
  slowHosts:: 'network:fabricpulse_edge_latency_elevated:slow_hosts' + s.braces,

  // Edges that drop large packets: the least size that does not arrive, bytes. NICs that share several, whichever the direction,
  // as of lossy edges above.
  blackHolesSaid:: 'min by (%s) (%s)' % [edge, s.last('fabricpulse_edge_mtu_black_hole_bytes')],
  blackHoles:: 'edge:fabricpulse_edge_mtu_black_hole_bytes:min' + s.braces,
  blackHoleBalance:: 'edge:fabricpulse_edge_mtu_black_hole_bytes:receiver_to_sender_ratio' + s.braces,
  blackHoleNics:: 'device:fabricpulse_edge_mtu_black_hole_bytes:min' + s.braces,
  blackHolesAsPeers:: 'device:fabricpulse_edge_mtu_black_hole_bytes:as_peers' + s.braces,
  blackHoleNetworks:: 'network:fabricpulse_edge_mtu_black_hole_bytes:nics' + s.braces,
  anyDirection(nics, worst):: '%s by (%s) (%s)' % [worst, own, nics],
  // Such edges of no NIC that is named.
  blackHoleSingle:: '%s unless on (%s) %s unless on (%s) label_replace(label_replace(%s, "peer", "$1", "instance", "(.*)"), "peer_device", "$1", "device", "(.*)")' % [$.blackHoles, own, $.blackHoleNics, peer, $.blackHoleNics],

  // A NIC or a host that is silent altogether loses all of it: that is not a lossy path, and has alerts of its own. It is
  // looked for over twice the window: its last losses are counted when eight more trains of probes have come.
  silent::
    local all = 'max_over_time(%s[%s]%%s) > 0' % [
      s.series('fabricpulse_edge_evidence', 'evidence=~"own_nic_disconnected|peer_silent|peer_host_silent|peer_nic_silent"'),
      config.pathLossWindow,
    ];
    '(%s or %s)' % [all % '', all % (' offset ' + config.pathLossWindow)],

  local labelled(expr, key, label, table) = '(%(expr)s) * on (%(own)s) group_left (%(label)s) %(table)s or on (%(key)s) (%(expr)s)' % {
    expr: expr,
    own: own,
    label: label,
    table: table,
    key: key,
  },
  // With the network of the NIC, and its leaf, where it is known; with its network alone. `key` tells the elements apart.
  placed(expr, key, places=faultyPlaces):: labelled(expr, key, 'leaf, network', places),
  // By the few rows of the recorded table: where the name of a NIC tells its network on every host, of a host that has NICs there.
  networksAlike:: 'group by (%(c)s, device, network) (sum by (%(c)s, device, network) (%(networks)s) == on (%(c)s) group_left () count by (%(c)s) (%(hosts)s))' % {
    c: c,
    networks: $.networks,
    hosts: hostsWithNics,
  },
  // Hosts that have NICs in a mesh, with how many.
  local hostsWithNics = 'host:fabricpulse_nic_network:count' + s.braces,
  // Of each name of a NIC the value, where the NICs of this name on all these hosts have the same: then the largest is also the mean, to which
  // a NIC of which nothing is known adds 0.
  sameOnAllHosts(value):: 'max by (%(name)s) (%(there)s) == sum by (%(name)s) (max by (%(own)s) (%(there)s)) / on (%(c)s) group_left () count by (%(c)s) (%(hosts)s)' % {
    name: '%s, device' % c,
    there: '%s and on (%s, instance) %s' % [value, c, hostsWithNics],
    own: own,
    c: c,
    hosts: hostsWithNics,
  },
  networkOfName:: 'device:fabricpulse_nic_network:alike' + s.braces,
  inNetworkOf(expr, key=own):: '((%(expr)s) and on (%(c)s, instance) %(hosts)s) * on (%(c)s, device) group_left (network) %(names)s or on (%(key)s) (%(expr)s) * on (%(own)s) group_left (network) %(others)s' % {
    expr: expr,
    c: c,
    hosts: hostsWithNics,
    names: $.networkOfName,
    key: key,
    own: own,
    others: 'device:fabricpulse_nic_network:other' + s.braces,
  },
  networked(expr, key=own):: '%s or on (%s) (%s)' % [$.inNetworkOf(expr, key), key, expr],
  placedNics(expr, places=faultyPlaces):: $.placed(expr, own + ', direction', places),
  placedEdges(expr, places=faultyPlaces):: $.placed(expr, edge, places),
  // NICs that at least sharedEdges of the edges have in common, receiving or sending; the latter under the names of the
  // former. `worst` keeps what is said of the edges.
  local receiving(edges, worst) = '(%s by (%s) (%s) and on (%s) count by (%s) (%s) >= %d)' % [worst, own, edges, own, own, edges, config.sharedEdges],
  local sending(edges, worst) =
    local shared = '(%s by (%s) (%s) and on (%s) count by (%s) (%s) >= %d)' % [worst, peer, edges, peer, peer, edges, config.sharedEdges];
    '%s by (%s) (label_replace(label_replace(%s, "instance", "$1", "peer", "(.*)"), "device", "$1", "peer_device", "(.*)"))' % [if worst == 'count' then 'max' else worst, own, shared],
  nics(received, worst, sent=received)::
    'label_replace(%s, "direction", "receive", "", "") or label_replace(%s, "direction", "transmit", "", "")' % [receiving(received, worst), sending(sent, worst)],
  // Those of both sides under one name of the NIC.
  directed(received, sent)::
    local label(expr, name, value, from='') = 'label_replace(%s, "%s", "%s", "%s", "%s")' % [expr, name, value, from, if from == '' then '' else '(.*)'];
    local named = label(label(sent, 'instance', '$1', 'peer'), 'device', '$1', 'peer_device');
    '%s or %s' % [label(received, 'direction', 'receive'), label(label(label(named, 'peer', ''), 'peer_device', ''), 'direction', 'transmit')],
  // Lossy edges of no NIC that is named.
  lossySingle::
    local lossy(direction) = s.series('device:fabricpulse_edge_probes_lost:lossy_ratio', 'direction="%s"' % direction);
    local sender = 'label_replace(label_replace(%s, "peer", "$1", "instance", "(.*)"), "peer_device", "$1", "device", "(.*)")' % lossy('transmit');
    '%s unless on (%s) %s unless on (%s) %s' % [$.lossyAlone, own, lossy('receive'), peer, sender],
}
