// One fault, one page: what explains many alerts at once. Alertmanager inhibits the members (deploy/alertmanager.yml).
local lib = import '../lib/alerts.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    local c = config.clusterLabel,
    groups+: [
      lib.group(config, 'summary', [
        // Two daemons at least: with one alone, that daemon is the news.
        lib.alert(
          config,
          'FabricHostDown',
          'critical',
          'exporter',
          local up = 'max_over_time(%s[%s])' % [s.series('up', config.jobSelector), config.exporterDownFor];
          'count by (%(c)s, instance) (%(up)s == 0) >= 2 unless on (%(c)s, instance) %(up)s == 1' % { c: c, up: up },
          'A host does not answer at all.',
          'None of the {{ $value | printf "%.0f" }} fabricpulse daemons of {{ $labels.instance }} answers: the host or its front-end network is down.',
          { 'for': config.hostDownFor }
        ),
        lib.alert(
          config,
          'FabricNetworkDown',
          'critical',
          'mesh',
          local connected = 'max by (%s, instance, device, network) (%s)' % [c, s.nicConnected];
          'count by (%(c)s, network) (%(connected)s == 0) >= %(least)d and on (%(c)s, network) count by (%(c)s, network) (%(connected)s == 0) / count by (%(c)s, network) (%(connected)s) >= %(share)g' % {
            c: c,
            connected: connected,
            least: config.networkDownLeastNics,
            share: config.networkDownShare,
          },
          'Many NICs of a network are disconnected at once.',
          '{{ $value | printf "%.0f" }} NICs of network {{ $labels.network }} reach no peer: a switch or a rail, not the NICs.'
        ),
        lib.alert(
          config,
          'FabricClockCoordinatorLost',
          'critical',
          'clocksync',
          'count by (%(c)s) (%(up)s == 0) > 1 and on (%(c)s) count by (%(c)s) (%(up)s == 0) > 0.5 * count by (%(c)s) (%(up)s)' % {
            c: c,
            up: s.last('fabricpulse_clock_coordinator_up'),
          },
          'Most hosts reach no coordinator of fleet time.',
          '{{ $value | printf "%.0f" }} sidecars reach no coordinator: it is down, or the way to it.',
          { 'for': config.clockCoordinatorDownFor }
        ),
      ]),
    ],
  },
}
