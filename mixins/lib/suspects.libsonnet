// Suspected components as a graph: what is wrong, what is suspected of it, and what hangs on that. Links between switches are in
// no series, so that those are drawn that are suspected themselves, and the leaves of NICs and hosts.
local signals = import '../signals.libsonnet';
local g = import 'panels.libsonnet';
// suspects: series of the components, by further matchers.
function(config, suspects)
  local c = config.clusterLabel;
  local s = signals(config, '%s=~"$%s"' % [c, c]);
  local likeliest(kinds='') = 'topk(20, %s)' % suspects(kinds);
  // label_join and not label_replace: the latter writes $1, which could be taken for a variable of the page.
  local copied(expr, label, of) = 'label_join(%s, "%s", "/", %s)' % [expr, label, std.join(', ', ['"%s"' % name for name in of])];
  local words(expr, label, text) = 'label_replace(%s, "%s", "%s", "", "")' % [expr, label, text];
  local edge(expr, source, target) = copied(copied(expr, 'source', [source]), 'target', [target]);
  // NICs and hosts that are suspected, or are below what is: faulty is what names the component.
  local suspected(labels, faulty, kinds) = '(%s and on (%s, faulty) %s)' % [
    copied('group by (%s, %s, leaf) (%s)' % [c, std.join(', ', labels), s.series('fabricpulse_nic_connected', 'leaf!=""')], 'faulty', faulty),
    c,
    likeliest(kinds),
  ];
  g.nodeGraph(
    config,
    'Suspects, and what hangs on them',
    'From what is wrong to the components that are suspected of it, with the probability, and on to the other end of a suspected link, the leaf of a suspected NIC or host, the hosts below a suspected leaf.',
    [
      local figures = 'count_values by (%(c)s, what, faulty) ("percent", round(100 * max by (%(c)s, what, faulty) (%(likeliest)s)))' % { c: c, likeliest: likeliest() };
      edge('label_join(%s, "mainstat", " ", "percent", "unit")' % words(words(figures, 'unit', '%'), 'color', 'red'), 'what', 'faulty'),
      edge('group by (%s, faulty, peer) (%s)' % [c, likeliest('peer!=""')], 'faulty', 'peer'),
      edge(suspected(['instance', 'device'], ['instance', 'device'], 'kind=~"nic.*"'), 'faulty', 'leaf'),
      edge(suspected(['instance'], ['instance'], 'kind="host"'), 'instance', 'leaf'),
      edge(suspected(['instance'], ['leaf'], 'kind="switch"'), 'leaf', 'instance'),
      // Of a diagnosis that fails nobody knows.
      words(
        words(
          'group by (%s) (%s > 0) unless on () %s unless on () %s == 0' % [
            c,
            s.last('fabricpulse_diagnosis_hosts'),
            suspects(''),
            s.last('fabricpulse_scrape_collector_success', 'collector="diagnosis"'),
          ],
          'source',
          'diagnosis'
        ),
        'target',
        'no suspect'
      ),
    ]
  )
