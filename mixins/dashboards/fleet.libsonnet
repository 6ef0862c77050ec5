// Overview: is anything gray or red, on which host, since when.
local g = import '../lib/panels.libsonnet';
local signals = import '../signals.libsonnet';
{
  grafanaDashboards+:: {
    local config = $._config,
    local s = signals(config, '%s=~"$%s", instance=~"$instance", network=~"$network"' % [config.clusterLabel, config.clusterLabel]),
    local host = signals(config, '%s=~"$%s", instance=~"$instance"' % [config.clusterLabel, config.clusterLabel]),
    local bad = [{ color: 'green', value: 0 }, { color: 'red', value: 1 }],
    // How many of these are bad: 0 only where there are any.
    local counted(bad, all) = 'count(%s) or 0 * count(%s)' % [bad, all],
    local fleet = g.clusterMatcher(config),
    local alerts = 'ALERTS{alertname=~"Fabric.+", alertname!="FabricWatchdog", alertstate="firing", %s}' % g.alertMatcher(config),

    'fabricpulse-fleet.json': g.dashboard(
      config,
      'fleet',
      'Fleet overview',
      'Every NIC of the fleet as the probe mesh sees it, alerts, fleet time.',
      [
        g.variable(config, 'instance', 'Host', 'fabricpulse_nic_connected', fleet),
        g.variable(config, 'network', 'Network', 'fabricpulse_nic_connected', fleet + ', instance=~"$instance"'),
      ],
      [
        g.row('Now', [
          g.stat('NICs disconnected', 'NICs that reach none of their peers.', 'short', [
            g.query(counted(s.nicConnected + ' == 0', s.nicConnected), instant=true),
          ], bad),
          g.stat('NICs flapping', 'NICs that lost the fabric %d times or more within %s.' % [config.flapThreshold, config.flapWindow], 'short', [
            g.query(counted('%s >= %d' % [s.nicDisconnects(config.flapWindow), config.flapThreshold], s.nicConnected), instant=true),
          ], bad),
          g.stat('Edges down', 'Pairs of NICs that do not reach each other, over all probed pairs.', 'short', [
            // Not by edge_up: a large fleet exports no edge that is well.
            g.query('sum(%s)' % s.last('fabricpulse_nic_edges', 'state="down"'), instant=true),
          ], bad),
          g.stat('Hosts without fleet time', 'Hosts whose clock is not synchronised.', 'short', [
            g.query(counted(host.clockSynchronized + ' == 0', host.clockSynchronized), instant=true),
          ], bad),
          g.stat('Widest clock bound', 'The largest error bound of fleet time on any host.', 's', [
            g.query('max(%s)' % host.clockBound, instant=true),
          ], [{ color: 'green', value: 0 }, { color: 'red', value: config.clockBoundSeconds }]),
          g.stat('Alerts firing', 'Alerts of fabricpulse that fire now.', 'short', [
            // None where the rules are evaluated, which FabricWatchdog shows; it has no label of a cluster.
            g.query(counted(alerts, 'ALERTS{alertname="FabricWatchdog", alertstate="firing"}'), instant=true),
          ], bad),
        ]),
        g.row('NICs', [
          g.stateTimeline(
            config,
            'NICs with faults',
            'The thirty NICs that were disconnected or flapping most within the time range. Green: connected. Orange: connected, and lost the fabric within the last minute. Red: disconnected.',
            // 0 disconnected, 1 connected, 2 connected after a disconnect in the last minute.
            '(%s + (%s > bool 0) * %s)' % [
              s.series('fabricpulse_nic_connected'),
              s.nicDisconnects('1m'),
              s.series('fabricpulse_nic_connected'),
            ],
            g.faultyNics(config, s, 30),
            '{{instance}} {{device}}',
            s.series('fabricpulse_nic_connected'),
            {
              '0': { text: 'disconnected', color: 'red' },
              '1': { text: 'connected', color: 'green' },
              '2': { text: 'flapping', color: 'orange' },
            }
          ),
          g.timeseries('Disconnects', 'How often a NIC lost the fabric, per five minutes; the twenty NICs that did most often in the range.', 'short', [
            g.query(g.rising(config, s.nicDisconnects('5m'), s.series('fabricpulse_nic_disconnects_total'), 'instance, device'), '{{instance}} {{device}}'),
            g.unchanged([s.series('fabricpulse_nic_disconnects_total')]),
          ]),
          g.unwell(config, 'NICs of unknown health', 'They had no peers, or their host was too late to judge: a fault of them would not have been seen. The twenty that were so for longest in the range.', s.series('fabricpulse_nic_state', 'state="unknown"'), 'instance, device', '{{instance}} {{device}}', ['known', 'unknown'], 0),
          g.timeseriesLeast('Connected share of each network', 'NICs of a network that reach a peer, of all its NICs.', 'percentunit', [
            g.query('network:fabricpulse_nic_connected:ratio{%s, network=~"$network"}' % fleet, '{{network}}'),
          ]),
        ]),
        g.row('Fleet time', [
          g.timeseries('Error bound', 'Half width of the interval that holds the true time; the twenty hosts that were worst in the range.', 's', [
            g.query(g.worst(config, host.series('fabricpulse_clock_error_bound_seconds'), 'instance'), '{{instance}}'),
          ]),
          g.timeseries('Clock offset', 'Fleet time minus the clock of the host; negative: the host is fast. The twenty largest of the range.', 's', [
            g.query(g.worst(config, host.series('fabricpulse_clock_offset_seconds'), 'instance'), '{{instance}}'),
          ]),
          g.timeseries('Hosts without a coordinator', 'Their fleet time is kept by their neighbours, and error bounds grow.', 'none', [
            g.query(counted(host.last('fabricpulse_clock_coordinator_up') + ' == 0', host.last('fabricpulse_clock_coordinator_up')), 'hosts'),
          ]),
        ]),
      ]
    ),
  },
}
