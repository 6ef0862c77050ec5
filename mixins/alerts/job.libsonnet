// What the job feels: lanes of the NCCL plugin.
local lib = import '../lib/alerts.libsonnet';
local flows = import '../lib/flows.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    local job = '%s, workload' % config.clusterLabel,
    // The rank that is waited for, as `rank`. Several of one host may wait for one: they must be one series before.
    local waitedFor(aggregated) = 'label_replace(label_replace(%s, "rank", "$1", "peer_rank", "(.+)"), "peer_rank", "", "", "")' % aggregated,
    local longest(expr) = 'max by (%s, peer, peer_rank) (%s)' % [job, expr],
    groups+: lib.groups(config, 'job', [
      lib.alert(
        config,
        'FabricLaneDown',
        'warning',
        'plugin',
        // Not while remediation keeps the job off this NIC on purpose.
        '%s == 0 unless on (%s, instance, workload, device) %s > 0' % [
          s.once(s.last('fabricpulse_lane_state'), 'workload, device'),
          config.clusterLabel,
          s.last('fabricpulse_lane_nic_avoided'),
        ],
        'A job runs without one of its lanes.',
        'No lane of workload {{ $labels.workload }} on {{ $labels.instance }} carries traffic over NIC {{ $labels.device }}; the job runs on the others.',
        { 'for': config.laneDownFor, rare: true }
      ),
      lib.alert(
        config,
        'FabricLaneFailovers',
        'warning',
        'plugin',
        // Not where the job runs over a NIC that has its own alert: lanes of other hosts to it fail with it; nor where a flow of it
        // is contended. That a NIC is slow is known later than that its lanes fail: while its alert waits to fire this one waits, too,
        // but does not end, and not for long.
        local lane = '%s, job, instance, workload, device' % config.clusterLabel;
        local failovers = 'lane:fabricpulse_lane_failovers:increase' + s.braces;
        local over(nics) = 'group by (%(job)s) (%(lanes)s and on (%(nic)s) %(nics)s)' % {
          job: job,
          lanes: flows(config).lanesOfFaultyNics,
          nic: '%s, instance, device' % config.clusterLabel,
          nics: nics,
        };
        '%(failovers)s >= %(threshold)d unless on (%(job)s) %(named)s unless on (%(job)s) %(contended)s unless on (%(lane)s) (%(failovers)s and on (%(job)s) %(maybe)s unless on (%(lane)s) %(fires)s unless on (%(lane)s) %(before)s >= %(threshold)d)' % {
          failovers: failovers,
          threshold: config.laneFailoverThreshold,
          job: job,
          lane: lane,
          named: over('last_over_time(%s[%s])' % [s.series('ALERTS', 'alertname=~"FabricNicDisconnected|FabricNicFlapping|FabricNicLossy|FabricNicSlow", alertstate="firing"'), config.laneFailoverWindow]),
          contended: 'last_over_time(%s[%s])' % [s.series('ALERTS', 'alertname="FabricPathContended", alertstate="firing"'), config.laneFailoverWindow],
          maybe: over('device:fabricpulse_edge_latency_elevated:slowest' + s.braces),
          fires: s.series('ALERTS', 'alertname="FabricLaneFailovers", alertstate="firing"'),
          before: '%s offset %s' % [failovers, config.laneFailoverHold],
        },
        'A job moves its traffic between NICs again and again.',
        'Traffic of workload {{ $labels.workload }} on {{ $labels.instance }} was moved away from NIC {{ $labels.device }} {{ $value | printf "%.0f" }} times within ' + config.laneFailoverWindow + '.',
        { 'for': config.laneFailoverFor, paced: true }
      ),
      // Of the hosts of a job those that no NIC carries, the peers of which are on last resort for them, too; all that are,
      // where there is none such: then it is a path. Instant values: a job that goes on for some seconds by TCP and ends
      // must not be held by its last value. Not where each NIC that a host of the job uses has its own alert: the cause.
      lib.alert(
        config,
        'FabricJobOnLastResort',
        'warning',
        'plugin',
        local host = '%s, instance, workload' % config.clusterLabel;
        local onTcp = 'sum by (%s) (%s) > 0' % [host, s.series('fabricpulse_lanes', 'state="last_resort"')];
        // Recorded, up to slowInterval ago: less than `for`.
        local lanes = 'lane:fabricpulse_lane_state:of_last_resort' + s.braces;
        local cutOff = '(%s unless on (%s) %s > 0)' % [onTcp, host, lanes];
        '(%(cutOff)s or %(onTcp)s unless on (%(job)s) %(cutOff)s) unless on (%(job)s) (%(lanes)s unless on (%(host)s) (%(lanes)s unless on (%(nic)s) %(firing)s))' % {
          cutOff: cutOff,
          onTcp: onTcp,
          job: job,
          host: host,
          nic: '%s, instance, device' % config.clusterLabel,
          lanes: lanes,
          firing: s.series('ALERTS', 'alertname=~"FabricNicDisconnected|FabricNicGone|FabricNicFlapping|FabricNicLossy|FabricMtuBlackHole", alertstate="firing"'),
        },
        'A job has no queue pair left and goes on over TCP.',
        'Workload {{ $labels.workload }} on {{ $labels.instance }} goes on over TCP, slowly ({{ $value | printf "%.0f" }} lanes of last resort): none of its queue pairs to a peer is up.',
        { 'for': config.lastResortFor, keep_firing_for: config.lastResortKeepFiring, slow: true }
      ),
      // Others wait longer for it than it waits itself, for whatever it be: who passes a wait on, or is held up by the
      // network, has waited as long. Sums of time, as in a ring each rank waits now and then. Not for what a stall was.
      lib.alert(
        config,
        'FabricStraggler',
        'warning',
        'plugin',
        local rate(name) = 'rate(%s[%s])' % [s.series(name), config.stragglerWindow];
        '%(others)s - on (%(job)s, rank) group_left () max by (%(job)s, rank) (%(own)s) > %(share)g unless on (%(job)s) last_over_time(%(stalled)s[%(window)s])' % {
          job: job,
          // No own wait is below 0: what is no longer than the share is not longer by it than any. It costs less to leave out first.
          others: waitedFor('(%s > %g)' % [longest(rate('fabricpulse_request_waited_for_peer_seconds_total')), config.stragglerShare]),
          own: rate('fabricpulse_request_waited_seconds_total'),
          share: config.stragglerShare,
          stalled: s.series('ALERTS', 'alertname="FabricCollectiveStalled", alertstate="firing"'),
          window: config.stragglerWindow,
        },
        'A rank makes the others wait.',
        'Another rank waits for rank {{ $labels.rank }} of workload {{ $labels.workload }} on {{ $labels.peer }} for {{ $value | humanizePercentage }} more of the time than that rank waits itself: its GPU, its input or its process, not the network.',
        { 'for': config.stragglerFor, slow: true }
      ),
      // The head of the chain of those who wait, in seconds: where the network begins to be waited for, a process that
      // gives no sign of life, or a rank that waits for nobody. Instant values: what ended must not be held by its last
      // value. A job that only the profiler sees, over another network plugin, has no waits: there the head is a process that
      // gives no sign of life, or the rank that is outside the one collective that others do not leave, or not known.
      lib.alert(
        config,
        'FabricCollectiveStalled',
        'critical',
        'plugin',
        local any = s.series('fabricpulse_request_waiting_seconds');
        local waiting(what, more='') = '%s > %g' % [s.series('fabricpulse_request_waiting_seconds', 'waits_for=~"%s"%s' % [what, more]), config.stalledSeconds];
        local known = ', peer_rank!=""';
        // Those without a sign of life alone are exposed as silent.
        local silent = '%s > %g' % [s.series('fabricpulse_plugin_silent_seconds', 'rank!=""'), config.stalledSeconds];
        local move(expr, to, from) = 'label_replace(%s, "%s", "$1", "%s", "(.+)")' % [expr, to, from];
        local named(head, expr) = 'label_replace(%s, "head", "%s", "", "")' % [expr, head];
        // What a stopped process waited for was long there.
        local alive(what, more='') = '(%s unless on (%s, rank) %s)' % [waiting(what, more), job, silent];
        // From a host all of whose NICs are dead nothing gets through, nor to it: that is their news (FabricNicDisconnected).
        local host = config.clusterLabel + ', instance';
        local network = 'max by (%(job)s, rank, peer, peer_rank) (%(waiting)s unless on (%(host)s) (%(cutOff)s)) unless on (%(job)s, peer_rank) %(silent)s unless on (%(c)s, peer) %(peers)s' % {
          c: config.clusterLabel,
          job: job,
          host: host,
          cutOff: s.hostCutOff,
          peers: move(s.hostCutOff, 'peer', 'instance'),
          waiting: alive('delivery|lane'),
          silent: move(silent, 'peer_rank', 'rank'),
        };
        // A rank that is waited for, and itself waits for nobody that is known of.
        local head = '%(waiting)s unless on (%(job)s, rank) %(any)s unless on (%(job)s, rank) (%(silent)s)' % {
          job: job,
          silent: silent,
          waiting: waitedFor(longest(alive('peer_send|peer_receive', known))),
          any: any,
        };
        // It is late only where its host has all processes of the job that it lately had, and while others wait has not lost one: where that
        // host is not scraped, or one of them has ended, nobody knows whether the rank waits. Not asked of each rank: eight times as many
        // series. Whichever pod counts them: one that has been replaced counts what is left.
        local processes(expr) = 'max by (%s, instance) (%s)' % [job, expr % s.series('fabricpulse_qp_processes')];
        local whole = move('(%s >= %s unless on (%s, instance) host:fabricpulse_qp_processes:lost%s)' % [
          processes('%s'),
          processes('max_over_time(%%s[%s])' % config.processesWindow),
          job,
          s.braces,
        ], 'peer', 'instance');
        local late = '(%(late)s or on (%(job)s, rank) %(unheard)s)' % {
          job: job,
          late: named('rank', '%s and on (%s, peer) %s' % [head, job, whole]),
          unheard: named('unknown', head),
        };
        // Ranks each of which waits for one that waits as well, and nothing has been on its way for long: the program. For so long that scrapes
        // of different moments cannot have put a circle together. Ranks of a pipeline that have posted what they receive next, and compute
        // until they send it, wait alike.
        local circle =
          local old = '%s > %g' % [s.series('fabricpulse_request_waiting_seconds', 'waits_for=~"peer_send|peer_receive"' + known), config.circleFactor * config.stalledSeconds];
          'max by (%(job)s) (%(old)s) unless on (%(job)s) (%(waitedFor)s unless on (%(job)s, rank) %(old)s) unless on (%(job)s) %(network)s unless on (%(job)s) (%(silent)s) unless on (%(job)s) (%(head)s)' % {
            job: job,
            old: old,
            waitedFor: waitedFor(longest(old)),
            network: '(%s > %g)' % [s.series('fabricpulse_request_waiting_seconds', 'waits_for!~"peer_send|peer_receive"'), config.stalledSeconds],
            silent: silent,
            head: head,
          };
        local stopped = 'max by (%(job)s, rank, peer) (%(silent)s) and on (%(job)s, rank) %(waiting)s' % {
          job: job,
          silent: move(silent, 'peer', 'instance'),
          waiting: waitedFor(longest(waiting('.+', known))),
        };
        // Of jobs that only the profiler sees the exporter shows ranks that have not moved for too long, and no others: few
        // series, none while jobs run. Of jobs over our plugin the waits of requests are seen sooner, and say more.
        local profiled = {
          local communicator = job + ', communicator',
          local stalled = s.series('fabricpulse_rank_stalled_seconds'),
          // Another user's job may have the same name.
          local stuck = '%s unless on (%s, uid) %s' % [stalled, job, any],
          local unmoved(state) = s.series('fabricpulse_rank_unmoved_operations', 'state="%s"' % state),
          // The one rank that has ended no more than those inside, and is in none: it has not entered the one that others do not
          // leave. Not one of several: who of them is late is not seen. Nor where its host is inside a collective of another
          // communicator, where its exporter does not call it outside: of several communicators one waits for another.
          local outside = '(%(out)s and on (%(communicator)s) count by (%(communicator)s) (%(out)s) == 1 and on (%(job)s) count by (%(job)s) (group by (%(communicator)s) (%(stuck)s)) == 1)' % {
            communicator: communicator,
            job: job,
            out: '(%s <= on (%s) group_left () max by (%s) (%s))' % [unmoved('outside'), communicator, communicator, unmoved('inside')],
            stuck: stuck,
          },
          process: 'max by (%s, rank, peer) (%s) and on (%s) (%s)' % [job, move(silent, 'peer', 'instance'), job, stuck],
          rank: 'group by (%s, communicator, rank, peer) (%s) * on (%s) group_left () max by (%s) (%s) unless on (%s) (%s)' % [job, move(outside, 'peer', 'instance'), job, job, stuck, job, silent],
          unknown: 'max by (%(job)s) (%(stuck)s) unless on (%(job)s) (%(silent)s) unless on (%(job)s) %(outside)s' % {
            job: job,
            stuck: stuck,
            silent: silent,
            outside: outside,
          },
        };
        std.join(' or ', [
          named('network', network),
          named('process', stopped),
          late,
          named('circle', circle),
          named('process', profiled.process),
          named('rank', profiled.rank),
          named('unknown', profiled.unknown),
        ]),
        'A collective does not end.',
        'Workload {{ $labels.workload }} stands still ({{ $value | printf "%.0f" }} s). {{ if eq $labels.head "network" }}The network: rank {{ $labels.rank }} gets nothing through to rank {{ $labels.peer_rank }} on {{ $labels.peer }}.{{ else if eq $labels.head "unknown" }}Whether the network or a rank holds it up is not known{{ with $labels.rank }}: rank {{ . }}{{ end }}{{ with $labels.peer }} on {{ . }} is waited for, and does not report{{ end }}.{{ else if eq $labels.head "circle" }}Not the network: its ranks wait for one another in a circle, or each has posted its receive and computes.{{ else }}Not the network: rank {{ $labels.rank }}{{ with $labels.communicator }} of communicator {{ . }}{{ end }} on {{ $labels.peer }} {{ if eq $labels.head "process" }}gives no sign of life.{{ else }}has not entered the collective and waits for nobody.{{ end }}{{ end }}'
      ),
    ]),
  },
}
