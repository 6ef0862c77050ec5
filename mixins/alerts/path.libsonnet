// Gray failures as each host's probes see them. What several edges share is named instead of each edge.
local lib = import '../lib/alerts.libsonnet';
local flows = import '../lib/flows.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    local c = config.clusterLabel,
    local edge = '%s, instance, device, peer, peer_device' % c,
    local own = '%s, instance, device' % c,
    local peer = '%s, peer, peer_device' % c,
    local lossy = 'edge:fabricpulse_edge_probes_lost:lossy_ratio' + s.braces,
    local elevated = 'max by (%s) (%s == 1)' % [edge, s.last('fabricpulse_edge_latency_elevated')],
    // NICs that at least sharedEdges of the edges have in common, receiving or sending; the latter under the names of
    // the former. `worst` keeps what is said of the edges.
    local receiving(edges, worst) = '(%s by (%s) (%s) and on (%s) count by (%s) (%s) >= %d)' % [worst, own, edges, own, own, edges, config.sharedEdges],
    local sending(edges, worst) =
      local shared = '(%s by (%s) (%s) and on (%s) count by (%s) (%s) >= %d)' % [worst, peer, edges, peer, peer, edges, config.sharedEdges];
      'max by (%s) (label_replace(label_replace(%s, "instance", "$1", "peer", "(.*)"), "device", "$1", "peer_device", "(.*)"))' % [own, shared],
    local nics(edges, worst) =
      'label_replace(%s, "direction", "receive", "", "") or label_replace(%s, "direction", "transmit", "", "")' % [receiving(edges, worst), sending(edges, worst)],
    local single(edges) = '%s unless on (%s) %s unless on (%s) (count by (%s) (%s) >= %d)' % [
      edges,
      own,
      receiving(edges, 'max'),
      peer,
      peer,
      edges,
      config.sharedEdges,
    ],
    groups+: [
      lib.group(config, 'path', [
        lib.alert(
          config,
          'FabricPathLoss',
          'warning',
          'mesh',
          single(lossy),
          'A path loses packets.',
          '{{ $value | humanizePercentage }} of the probes from {{ $labels.peer_device }} of {{ $labels.peer }} to {{ $labels.device }} of {{ $labels.instance }} are lost; the other direction has a series of its own.',
          { keep_firing_for: config.pathLossWindow }
        ),
        lib.alert(
          config,
          'FabricNicLossy',
          'critical',
          'mesh',
          nics(lossy, 'max'),
          'A NIC loses packets of many peers.',
          'NIC {{ $labels.device }} of {{ $labels.instance }} loses up to {{ $value | humanizePercentage }} of what it exchanges with several peers ({{ $labels.direction }} direction): the NIC, its cable or its switch port.',
          { keep_firing_for: config.pathLossWindow }
        ),
        lib.alert(
          config,
          'FabricPathSlow',
          'warning',
          'mesh',
          single(elevated),
          'A path has become slower than it was.',
          'The one-way delay from {{ $labels.peer_device }} of {{ $labels.peer }} to {{ $labels.device }} of {{ $labels.instance }} is far above its own baseline.',
          { 'for': config.pathSlowFor }
        ),
        lib.alert(
          config,
          'FabricNicSlow',
          'warning',
          'mesh',
          nics(elevated, 'count'),
          'All paths of a NIC have become slower.',
          '{{ $value | printf "%.0f" }} edges of NIC {{ $labels.device }} of {{ $labels.instance }} ({{ $labels.direction }} direction) are far above their baseline.',
          { 'for': config.pathSlowFor }
        ),
        lib.alert(
          config,
          'FabricPathDown',
          'warning',
          'mesh',
          'count by (%s) (%s > 0)' % [own, s.last('fabricpulse_edge_paths_down')],
          'Some of the paths through the switches are dead.',
          'On {{ $value | printf "%.0f" }} edges of NIC {{ $labels.device }} of {{ $labels.instance }} packets with some source ports do not arrive while others do: a link or a spine on their way.',
          { 'for': config.pathDownFor }
        ),
        lib.alert(
          config,
          'FabricPathMemberLossy',
          'warning',
          'mesh',
          'count by (%s) (%s > %g)' % [own, s.last('fabricpulse_edge_worst_path_loss_ratio'), config.pathLossRatio],
          'Some of the paths through the switches lose packets.',
          'On {{ $value | printf "%.0f" }} edges of NIC {{ $labels.device }} of {{ $labels.instance }} packets with some source ports are lost more often than others: a link or a spine on their way.',
          { 'for': config.pathSlowFor }
        ),
        lib.alert(
          config,
          'FabricInBandSlower',
          'warning',
          'plugin',
          flows(config).inBandSlower,
          "A job's packets take another way than probes.",
          'Flow {{ $labels.device }} of {{ $labels.instance }} to {{ $labels.peer_device }} of {{ $labels.peer }} (workload {{ $labels.workload }}) is {{ $value | printf "%.1f" }} times as slow as its siblings without congestion, and probes between the same NICs are not: another route or encapsulation (RoCE v1).',
          { 'for': config.inBandFor }
        ),
        lib.alert(
          config,
          'FabricSloMissed',
          'warning',
          'mesh',
          // Over a minute's data the mean says nothing of the window: the network must have been there for a while.
          local missed(record, objective) =
            'label_replace(avg_over_time(%(record)s[%(window)s]) < %(target)g and present_over_time(%(record)s[5m] offset %(least)s), "objective", "%(objective)s", "", "")' % {
              record: record + s.braces,
              window: config.sloWindow,
              target: config.sloTarget,
              least: config.sloLeastObserved,
              objective: objective,
            };
          missed('network:fabricpulse_edge_owd_seconds:slo_ratio', 'delay') + ' or ' + missed('network:fabricpulse_edge_probes_lost:slo_ratio', 'loss'),
          'A network does not keep what was promised of it.',
          'Network {{ $labels.network }} kept its {{ $labels.objective }} objective on {{ $value | humanizePercentage }} of paths and time within ' + config.sloWindow + '.'
        ),
      ]),
    ],
  },
}
