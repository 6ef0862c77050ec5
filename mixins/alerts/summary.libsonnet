// One fault, one page: what explains many alerts at once. Alertmanager inhibits the members (deploy/alertmanager.yml).
local lib = import '../lib/alerts.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    local c = config.clusterLabel,
    groups+: lib.groups(config, 'summary', [
      // Two daemons at least: with one alone, that daemon is the news.
      lib.alert(
        config,
        'FabricHostDown',
        'critical',
        'exporter',
        // The second way does not wait for more scrapes: other hosts receive no probes of its NICs, either. `peer` is what jobs call
        // the host, and `serves` which servers of the fleet died with it: by these Alertmanager mutes what comes of it elsewhere.
        // Not of a server that another host runs, or ran longer: what comes of that one's death is not this host's doing.
        // Where nothing of a cluster answers FabricNoData says so, not each host. Nor where nothing did so a moment ago: once Prometheus
        // reaches the cluster again it scrapes one host after the other.
        local host = '%s, instance' % c;
        local up = s.series('up', config.jobSelector);
        // Of each host, recorded (rules/daemon.libsonnet): how many daemons it has, and whether one of them has answered lately. That one
        // answers now is seen at once.
        local targets = 'host:fabricpulse_up:count' + s.braces;
        local lately = 'host:fabricpulse_up:max' + s.braces;
        local answering = 'cluster:fabricpulse_up:max' + s.braces;
        local ran(daemon) = 'group by (%(host)s) (%(seen)s == on (%(c)s) group_left () max by (%(c)s) (%(seen)s) unless on (%(c)s) %(runs)s)' % {
          c: c,
          host: host,
          local which = 'daemon=~".*%s"' % daemon,
          seen: s.series('daemon:fabricpulse_build_info:last_seen_timestamp_seconds', which),
          runs: s.series('fabricpulse_build_info', which),
        };
        local serves(expr, what) = 'label_replace(0 * (%s), "serves", "%s", "", "")' % [expr, what];
        local down = '(count by (%(host)s) (%(failed)s) >= 2 and on (%(host)s) %(lately)s == 0 or on (%(host)s) %(targets)s >= 2 and on (%(host)s) label_replace(count by (%(c)s, peer) (group by (%(host)s, peer) (%(silent)s == 1)) >= 2, "instance", "$1", "peer", "(.*)")) unless on (%(host)s) %(up)s == 1' % {
          c: c,
          host: host,
          failed: 'daemon:fabricpulse_up:down' + s.braces,
          up: up,
          targets: targets,
          lately: lately,
          silent: s.series('fabricpulse_edge_evidence', 'evidence="peer_host_silent"'),
        };
        'label_replace((%(down)s) + on (%(host)s) group_left (serves) (%(both)s or on (%(host)s) %(coordinator)s or on (%(host)s) %(receiver)s or on (%(host)s) 0 * %(targets)s) and on (%(c)s) %(answering)s == 1 and on (%(c)s) %(answering)s offset %(while)s == 1, "peer", "$1", "instance", "(.+)")' % {
          answering: answering,
          while: config.exporterDownFor,
          c: c,
          host: host,
          down: down,
          targets: targets,
          lately: lately,
          both: serves('%s and on (%s) %s' % [ran('coordinator'), host, ran('receiver')], 'coordinator and receiver'),
          coordinator: serves(ran('coordinator'), 'coordinator'),
          receiver: serves(ran('receiver'), 'receiver'),
        },
        'A host does not answer at all.',
        'None of the {{ $value | printf "%.0f" }} fabricpulse daemons of {{ $labels.instance }} answers: the host or its front-end network is down.',
        { 'for': config.hostDownFor }
      ),
      lib.alert(
        config,
        'FabricNetworkDown',
        'critical',
        'mesh',
        'count by (%(c)s, network) (%(disconnected)s) >= %(least)d >= on (%(c)s, network) (%(share)g * network:fabricpulse_nic_connected:count%(braces)s)' % {
          c: c,
          braces: s.braces,
          disconnected: s.nicDead,
          least: config.networkDownLeastNics,
          share: config.networkDownShare,
        },
        'Many NICs of a network are disconnected at once.',
        '{{ $value | printf "%.0f" }} NICs of network {{ $labels.network }} reach no peer: a switch or a rail, not the NICs.'
      ),
      lib.alert(
        config,
        'FabricNetworkSlow',
        'warning',
        'mesh',
        local slow = 'sum by (%(c)s, network) (group by (%(c)s, instance, device, network) (device:fabricpulse_edge_latency_elevated:count%(braces)s))' % { c: c, braces: s.braces };
        local many = '%(slow)s >= %(least)d >= on (%(c)s, network) (%(share)g * network:fabricpulse_nic_connected:count%(braces)s)' % {
          c: c,
          slow: slow,
          braces: s.braces,
          least: config.networkSlowLeastNics,
          share: config.networkSlowShare,
        };
        // Where delays of flows are measured one of them may be about to be named for the same queue, which takes
        // rateWindow and contentionFor: by this label Alertmanager waits so long before it tells people.
        'label_replace(%(many)s and on (%(c)s, network) device:fabricpulse_edge_latency_elevated:measured%(braces)s, "flows", "measured", "", "") or on (%(c)s, network) %(many)s' % {
          c: c,
          many: many,
          slow: 'device:fabricpulse_edge_latency_elevated:count' + s.braces,
          braces: s.braces,
        },
        'Many NICs of a network have become slower at once.',
        '{{ $value | printf "%.0f" }} NICs of network {{ $labels.network }} are far above the delay that they usually have: a switch or a rail, or a job that fills it.',
        { 'for': config.pathSlowFor, paced: true }
      ),
      lib.alert(
        config,
        'FabricClockCoordinatorLost',
        'critical',
        'clocksync',
        'count by (%(c)s) (%(down)s) > 1 > 0.5 * count by (%(c)s) (%(up)s)' % {
          c: c,
          down: s.again('fabricpulse_clock_coordinator_up', 0),
          up: s.last('fabricpulse_clock_coordinator_up'),
        },
        'Most hosts reach no coordinator of fleet time.',
        '{{ $value | printf "%.0f" }} sidecars reach no coordinator: it is down, or the way to it.',
        { 'for': config.clockCoordinatorDownFor, paced: true }
      ),
    ]),
  },
}
