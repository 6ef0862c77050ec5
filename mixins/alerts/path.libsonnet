// Gray failures as each host's probes see them. What several edges share is named instead of each edge.
local lib = import '../lib/alerts.libsonnet';
local flows = import '../lib/flows.libsonnet';
local paths = import '../lib/paths.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    local p = paths(config),
    local own = p.own,
    groups+: lib.groups(config, 'path', [
      lib.alert(
        config,
        'FabricEdgeLoss',
        'warning',
        'mesh',
        p.placedEdges(p.lossySingle),
        'Packets from one NIC to another are lost.',
        '{{ $value | humanizePercentage }} of the probes from {{ $labels.peer_device }} of {{ $labels.peer }} to {{ $labels.device }} of {{ $labels.instance }} are lost; the other direction has a series of its own.',
        { 'for': config.pathLossFor, keep_firing_for: config.pathLossWindow }
      ),
      lib.alert(
        config,
        'FabricNicLossy',
        'critical',
        'mesh',
        // Where its peers lose as much it may be a switch or a link: FabricFaultLocated of one mutes those with this label. Where many
        // NICs of a network or of a leaf do, now or lately, FabricNetworkLossy tells of all of them: of a few it is known a minute later.
        p.placedNics('(%(nics)s and on (%(nic)s) %(own)s or label_replace(%(alike)s, "peers", "lossy", "", ""))' % {
          nics: p.lossyNics,
          own: p.lossyByThemselves,
          nic: own + ', direction',
          alike: p.notInLeaves(
            p.notInNetworks(
              '%(peers)s and on (%(nic)s) %(peers)s offset 1m' % { peers: p.lossyAsPeers, nic: own + ', direction' },
              'last_over_time(%s[%s])' % [p.lossyNetworks, config.pathLossWindow]
            ),
            'last_over_time(%s[%s])' % [p.lossyLeaves, config.pathLossWindow]
          ),
        }),
        'A NIC loses packets of many peers.',
        'NIC {{ $labels.device }} of {{ $labels.instance }} loses up to {{ $value | humanizePercentage }} of what it exchanges with several peers ({{ $labels.direction }} direction): {{ if $labels.peers }}as its peers do, rather a switch or a link than the NIC{{ else }}the NIC, its cable or its switch port{{ end }}.',
        { keep_firing_for: config.pathLossWindow }
      ),
      lib.alert(
        config,
        'FabricNetworkLossy',
        'critical',
        'mesh',
        // By `faulty` and `peer` Alertmanager compares a leaf with the switch or the link of FabricFaultLocated.
        '%s or label_replace(label_replace(%s, "faulty", "$1", "leaf", "(.+)"), "peer", "$1", "leaf", "(.+)")' % [p.lossyNetworks, p.lossyLeaves],
        'Many NICs of a network lose packets of one another.',
        '{{ $value | printf "%.0f" }} NICs of {{ with $labels.leaf }}leaf {{ . }} in {{ end }}network {{ $labels.network }} lose packets, none of them more than its peers: a switch or a link, not the NICs.',
        { keep_firing_for: config.pathLossWindow }
      ),
      lib.alert(
        config,
        'FabricEdgeSlow',
        'warning',
        'mesh',
        p.placedEdges(p.slowSingle, p.slowPlaces),
        'The delay from one NIC to another has grown.',
        'The one-way delay from {{ $labels.peer_device }} of {{ $labels.peer }} to {{ $labels.device }} of {{ $labels.instance }} is far above its own baseline.',
        { 'for': config.pathSlowFor, paced: true }
      ),
      lib.alert(
        config,
        'FabricNicSlow',
        'warning',
        'mesh',
        // Of several NICs of a host those that explain the others, none that receives as much as it ever does: it is full
        // (FabricIncast, FabricPathContended). For a while none that is slow together with NICs of other hosts. See rules/path.libsonnet.
        p.placedNics('device:fabricpulse_edge_latency_elevated:unshared' + s.braces, p.slowPlaces),
        'Many edges of a NIC have become slower.',
        // Exporters of a large fleet tell three of a NIC's slow edges.
        'At least {{ $value | printf "%.0f" }} edges of NIC {{ $labels.device }} of {{ $labels.instance }}{{ with $labels.network }} on network {{ . }}{{ end }} ({{ $labels.direction }} direction) are far above their baseline.',
        { 'for': config.pathSlowFor, keep_firing_for: config.nicSlowKeepFiring, paced: true }
      ),
      lib.alert(
        config,
        'FabricPathDown',
        'warning',
        'mesh',
        p.placed('device:fabricpulse_edge_paths_down:count' + s.braces, own),
        'Some of the paths through the switches are dead.',
        'On {{ $value | printf "%.0f" }} edges of NIC {{ $labels.device }} of {{ $labels.instance }} packets with some source ports do not arrive while others do: a link or a spine on their way.',
        { 'for': config.pathDownFor }
      ),
      lib.alert(
        config,
        'FabricPathLossy',
        'warning',
        'mesh',
        p.placed('device:fabricpulse_edge_worst_path_loss:count' + s.braces, own),
        'Some of the paths through the switches lose packets.',
        'On {{ $value | printf "%.0f" }} edges of NIC {{ $labels.device }} of {{ $labels.instance }} packets with some source ports are lost more often than others: a link or a spine on their way.',
        { 'for': config.pathSlowFor, paced: true }
      ),
      lib.alert(
        config,
        'FabricMtuBlackHole',
        'warning',
        'mesh',
        // A NIC that several edges share is named once, not for each direction: its MTU holds for both. One whose peers explain its edges is
        // not; and of many that are alike the network.
        p.placedEdges('%(nics)s or min by (%(network)s) (%(alike)s) and on (%(network)s) %(networks)s or %(edges)s' % {
          nics: '(%s unless on (%s) %s or %s)' % [p.blackHoleNics, own, p.blackHolesAsPeers, p.notInNetworks(p.blackHolesAsPeers, p.blackHoleNetworks)],
          network: config.clusterLabel + ', network',
          alike: p.inNetwork(p.blackHolesAsPeers),
          networks: p.blackHoleNetworks,
          edges: p.blackHoleSingle,
        }),
        'A path drops large packets.',
        'IP packets of {{ $value | printf "%.0f" }} bytes and more {{ if $labels.peer }}from {{ $labels.peer_device }} of {{ $labels.peer }} to {{ $labels.device }} of {{ $labels.instance }}{{ else if $labels.device }}between {{ $labels.device }} of {{ $labels.instance }} and several peers{{ else }}between many NICs of network {{ $labels.network }}{{ end }} are dropped, on some source ports at least, while small ones arrive: an MTU {{ if $labels.peer }}on the way{{ else if not $labels.device }}of a switch or a link{{ else }}of the NIC, of its switch port or on the way{{ end }} that is too small.',
        // Its edges become known one after another: the first ones are not yet those of a NIC, or of a network.
        { 'for': config.pathLossFor }
      ),
      lib.alert(
        config,
        'FabricInBandSlower',
        'warning',
        'plugin',
        flows(config).inBandSlower,
        "A job's packets take another path than probes.",
        'Flow {{ $labels.device }} of {{ $labels.instance }} to {{ $labels.peer_device }} of {{ $labels.peer }} (workload {{ $labels.workload }}) is {{ $value | printf "%.1f" }} times as slow as its siblings without congestion, and probes between the same NICs are not: another route or encapsulation (RoCE v1).',
        { 'for': config.inBandFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricSloMissed',
        'warning',
        'mesh',
        // Over a minute's data the mean says nothing of the window: the network must have been there for a while.
        local missed(record, objective) =
          'label_replace(avg_over_time(%(record)s[%(window)s] offset %(lag)s) < %(target)g and present_over_time(%(record)s[5m] offset %(least)s), "objective", "%(objective)s", "", "")' % {
            record: record + s.braces,
            window: config.sloWindow,
            lag: config.sloLag,
            target: config.sloTarget,
            least: config.sloLeastObserved,
            objective: objective,
          };
        // Not where alerts of the same time name as many NICs as may miss it: of a small network one. Which they are is
        // known only while the network is measured: while nothing of it is, FabricNoData and its kin say so.
        // What they name was so at any time that the objective is judged by: its window, what that lags behind, and the rates of its
        // first moment.
        local judged = '%ds' % (s.seconds(config.sloWindow) + s.seconds(config.sloLag) + 300);
        local firing(names) = 'last_over_time(%s[%s])' % [s.series('ALERTS', 'alertname=~"%s", alertstate="firing"' % names), judged];
        '((%(delay)s or %(loss)s) and on (%(network)s) network:fabricpulse_nic_connected:count%(braces)s) unless on (%(network)s) sum by (%(network)s) (%(networks)s and on (%(nic)s) %(nics)s) >= on (%(network)s) (%(share)g * network:fabricpulse_nic_connected:count%(braces)s) unless on (%(c)s) %(hosts)s' % {
          delay: missed('network:fabricpulse_edge_owd_seconds:slo_ratio', 'delay'),
          loss: missed('network:fabricpulse_edge_probes_lost:slo_ratio', 'loss'),
          network: config.clusterLabel + ', network',
          nic: own,
          networks: p.networks,
          nics: firing('FabricNic(Disconnected|Flapping|FlappingSlowly|Gone|Lossy|Slow)|FabricEdge(Loss|Slow)|FabricPath(Down|Lossy|Contended)|FabricMtuBlackHole|FabricIncast'),
          share: 1 - config.sloTarget,
          braces: s.braces,
          c: config.clusterLabel,
          hosts: firing('FabricHostDown'),
        },
        'A network misses its service level objective.',
        'Network {{ $labels.network }} kept its {{ $labels.objective }} objective on {{ $value | humanizePercentage }} of paths and time within ' + config.sloWindow + '.',
        { rare: true }
      ),
    ]),
  },
}
