// Grafana dashboards as plain JSON, schema 39: what our panels need of it, and no more.
//
// A dashboard is a list of rows, a row a title and panels that say their width (of 24 columns) and height; `layout`
// gives them their place and number.
local dataLinks = import 'data_links.libsonnet';
(import 'selections.libsonnet') + {
  local datasource = { type: 'prometheus', uid: '${datasource}' },

  // A query. legend: Grafana's form, '{{instance}} {{device}}'.
  query(expr, legend='', instant=false, format='time_series')::
    {
      datasource: datasource,
      expr: expr,
      legendFormat: if legend == '' then '__auto' else legend,
      format: format,
      instant: instant,
      range: !instant,
    },

  local panel(type, title, description, unit, queries) = {
    type: type,
    title: title,
    description: description,
    datasource: datasource,
    targets: std.mapWithIndex(function(i, q) q { refId: std.char(65 + i) }, queries),
    fieldConfig: { defaults: { unit: unit }, overrides: [] },
    options: {},
    width:: 12,
    height:: 8,
  },

  // What stands where there is no series at all.
  local notMeasured = 'Not measured in this range',
  // Added to panels of what there is only while something is wrong.
  mayBeNone:: { fieldConfig+: { defaults+: { noValue: 'None in this range, or not measured' } } },
  // Added to panels of what not each NIC or host can tell. Not that there is no such thing: an exporter may be silent.
  only(what):: { fieldConfig+: { defaults+: { noValue: 'Not measured in this range: only %s can tell' % what } } },

  timeseries(title, description, unit, queries)::
    // The least that the top of an axis is: Grafana's is 100 where all is 0, which is 10,000 %.
    local top = std.get({ percentunit: 0.01, reqps: 0.1, short: 1, none: 1 }, unit);
    panel('timeseries', title, description, unit, queries) {
      fieldConfig+: { defaults+: {
        custom: { drawStyle: 'line', lineWidth: 1, fillOpacity: 0, showPoints: 'never', spanNulls: false } +
                (if top == null then {} else { axisSoftMax: top }),
        min: null,
        noValue: notMeasured,
      } },
      options: {
        legend: { displayMode: 'table', placement: 'right', calcs: ['mean', 'max'], showLegend: true, sortBy: 'Max', sortDesc: true },
        tooltip: { mode: 'multi', sort: 'desc' },
      },
    },

  // The same, the smallest first.
  timeseriesLeast(title, description, unit, queries)::
    $.timeseries(title, description, unit, queries) {
      options+: { legend+: { calcs: ['mean', 'min'], sortBy: 'Mean', sortDesc: false }, tooltip+: { sort: 'asc' } },
    },

  // What stands where there is no data: never a number, never green.
  local noData = { type: 'special', options: { match: 'null+nan', result: { text: 'NO DATA', color: 'purple', index: 99 } } },

  // A number. thresholds: [{ color, value }]; below the first, and without data, there is no colour of a state. A number that
  // is no state, beside what it explains: `plain`.
  plain:: { options+: { colorMode: 'value', text: { valueSize: 28 } } },
  stat(title, description, unit, queries, thresholds)::
    // A count is shown as it is: `short` would make 1.02 K of 1,024 NICs.
    panel('stat', title, description, if unit == 'short' then 'none' else unit, queries) {
      width:: 4,
      height:: 4,
      fieldConfig+: { defaults+: {
        thresholds: { mode: 'absolute', steps: [{ color: 'purple', value: null }] + thresholds },
        mappings: [noData],
        noValue: 'NO DATA',
      } },
      options: {
        colorMode: 'background',
        graphMode: 'none',
        reduceOptions: { calcs: ['lastNotNull'], fields: '', values: false },
        textMode: 'value',
      },
    },

  // States over time, one line a series, as long as they last. states: { '0': { text, color } }; well: which is the good one.
  // chosen: { on, series }: what had a fault in the range. measured: the series that it is chosen from. Where nothing is
  // chosen a line says so (Grafana would say that "data does not have a time field"), as long as all that was measured at
  // any time of the range is: of what has fallen silent nobody can say that it has no fault. Another line says when that is so.
  stateTimeline(config, title, description, state, chosen, legend, measured, states, well=1)::
    local faults = $.query('%s and on (%s) %s' % [state, chosen.on, chosen.series], legend);
    local silent = 'count(last_over_time(%(m)s[$__range] @ end())) > count(%(m)s)' % { m: measured };
    local none = $.query('0 * count(%s) + %d unless on () (%s) unless on () (%s)' % [measured, well, chosen.series, silent], 'no fault');
    local unknown = $.query('vector(-1) and on () (%s) or vector(-1) unless on () count(%s)' % [silent, measured], 'not all measured');
    local shown = states { '-1': { text: 'not measured', color: 'purple' } };
    panel('state-timeline', title, description, 'none', [faults, none, unknown]) {
      width:: 24,
      height:: 10,
      // More points than pixels make Grafana refuse the panel.
      maxDataPoints: 300,
      fieldConfig+: { defaults+: {
        // The colour mode only decides what the legend lists: with thresholds, Grafana's default, it would show these.
        color: { mode: 'palette-classic' },
        custom: { fillOpacity: 85, lineWidth: 0 },
        links: dataLinks.ofSeries(config, std.split(std.strReplace(chosen.on, ' ', ''), ',')),
        mappings: [{
          type: 'value',
          options: {
            [value]: { index: std.parseInt(value), text: shown[value].text, color: shown[value].color }
            for value in std.objectFields(shown)
          },
        }],
      } },
      options: {
        mergeValues: true,
        showValue: 'never',
        rowHeight: 0.85,
        legend: { displayMode: 'list', placement: 'bottom', showLegend: true },
        tooltip: { mode: 'single', sort: 'none' },
      },
    },

  // What was not well for longest in the range, of a gauge that is 0 or 1. key: labels of a line. words: of 0 and of 1;
  // well: which of them is.
  unwell(config, title, description, series, key, legend, words, well=1)::
    $.stateTimeline(
      config,
      title,
      description,
      series,
      {
        on: '%s, %s' % [config.clusterLabel, key],
        series: (if well == 1 then 'bottomk(20, avg_over_time(%s[$__range] @ end()) < 1)' else 'topk(20, avg_over_time(%s[$__range] @ end()) > 0)') % series,
      },
      legend,
      series,
      { [std.toString(i)]: { text: words[i], color: if i == well then 'green' else 'red' } for i in [0, 1] },
      well
    ) { width:: 12, height:: 8 },

  // What its cells open, for each column of [field, name].
  local links(config, columns) = [
    { matcher: { id: 'byName', options: column[1] }, properties: [{ id: 'links', value: dataLinks.ofColumn(config, column[0], [c[0] for c in columns]) }] }
    for column in columns
    if dataLinks.ofColumn(config, column[0], [c[0] for c in columns]) != []
  ],

  local noRows = 'None now, or not measured',
  // Else Grafana writes that into each cell of a label that a row has not.
  local emptyCells = { matcher: { id: 'byType', options: 'string' }, properties: [{ id: 'noValue', value: '' }] },
  local narrow(column) = { matcher: { id: 'byName', options: column }, properties: [{ id: 'custom.width', value: 90 }] },

  // The row of a table that has none, as long as something is measured: how many are measured, and in the column of `label` 'none of those that answer'.
  noneOf(measured, found, label, what):: $.query('label_replace(count(%s) unless on () count(%s), "%s", "none of %s", "", "")' % [measured, found, label, what]),

  // A table of instant queries, one row a label set. columns: [[field, name]] from left to right, fields that are not
  // named follow, but for the cluster, which is the last; hidden: labels not shown. The unit is that of values alone: labels
  // like a rank are digits, too.
  table(config, title, description, unit, queries, named, hidden=[])::
    local columns = named + [[config.clusterLabel, 'cluster']];
    panel('table', title, description, 'none', [q { format: 'table', instant: true, range: false } for q in queries]) {
      fieldConfig+: { defaults+: { custom: { minWidth: 50 }, noValue: noRows }, overrides: [
        { matcher: { id: 'byName', options: column[1] }, properties: [{ id: 'unit', value: unit }] }
        for column in columns
        if std.startsWith(column[0], 'Value')
      ] + [narrow('cluster'), emptyCells] + links(config, columns) },
      transformations: [
        { id: 'merge', options: {} },
        {
          id: 'organize',
          options: {
            renameByName: { [column[0]]: column[1] for column in columns },
            indexByName: { [columns[i][0]]: i for i in std.range(0, std.length(columns) - 1) },
            excludeByName: { [name]: true for name in ['Time', '__name__'] + hidden },
          },
        },
      ],
      options: { showHeader: true, cellHeight: 'sm' },
    },

  // Rows of a label times columns of another, coloured by value; pairs that there are not are empty, names plain.
  // states: { '0': { text, color } } in place of thresholds. Once for each cluster: two of them may have hosts of one name.
  // opens: the page that a cell leads to.
  matrix(config, title, description, unit, query, opens, thresholds=[], states={})::
    local row = 'instance';
    local column = 'network';
    local corner = '%s\\\\%s' % [row, column];
    panel('table', '%s, $%s' % [title, config.clusterLabel], description, unit, [query { format: 'table', instant: true, range: false }]) {
      width:: 24,
      height:: 12,
      repeat: config.clusterLabel,
      repeatDirection: 'v',
      fieldConfig: {
        defaults: {
          unit: unit,
          decimals: 0,
          noValue: noRows,
          links: dataLinks.ofCell(config, opens),
          custom: { cellOptions: { type: 'color-background', mode: 'basic' }, align: 'center', minWidth: 50 },
          mappings: [
            {
              type: 'value',
              options: {
                [value]: { index: std.parseInt(value), text: states[value].text, color: states[value].color }
                for value in std.objectFields(states)
              },
            },
            { type: 'special', options: { match: 'null', result: { text: '', color: 'transparent', index: 99 } } },
            // The quantile of a histogram in which nothing has come; below all thresholds it would be green.
            { type: 'special', options: { match: 'nan', result: { text: 'NO DATA', color: 'purple', index: 100 } } },
          ],
        } + if thresholds == [] then {} else { thresholds: { mode: 'absolute', steps: thresholds } },
        overrides: [{
          matcher: { id: 'byRegexp', options: corner },
          properties: [
            { id: 'custom.cellOptions', value: { type: 'auto' } },
            { id: 'displayName', value: 'host' },
            { id: 'links', value: dataLinks.ofRow(config) },
          ],
        }],
      },
      transformations: [
        { id: 'sortBy', options: { fields: {}, sort: [{ field: column }] } },
        {
          id: 'groupingToMatrix',
          options: { rowField: row, columnField: column, valueField: 'Value', emptyValue: 'null' },
        },
        { id: 'sortBy', options: { fields: {}, sort: [{ field: '%s\\%s' % [row, column] }] } },
      ],
      options: { showHeader: true, cellHeight: 'sm' },
    },

  // What fires, in the order of the query, with links to runbooks.
  alerts(config, title, description, expr)::
    local names = { alertname: 'alert', instance: 'host', faulty: 'switch or link', Value: 'since' };
    local columns = [
      'severity',
      'alertname',
      'instance',
      'device',
      'network',
      'workload',
      'peer',
      'rank',
      'faulty',
      'leaf',
      'Value',
      config.clusterLabel,
    ];
    panel('table', title, description, 'none', [$.query(expr, instant=true, format='table')]) {
      fieldConfig: {
        defaults: { unit: 'none', custom: { cellOptions: { type: 'auto' }, minWidth: 50 }, noValue: 'No rules are evaluated here: not even FabricWatchdog fires' },
        overrides: [
          { matcher: { id: 'byName', options: 'since' }, properties: [{ id: 'unit', value: 's' }, { id: 'decimals', value: 0 }] },
          {
            matcher: { id: 'byName', options: 'severity' },
            properties: [
              { id: 'custom.width', value: 100 },
              { id: 'custom.cellOptions', value: { type: 'color-background' } },
              {
                id: 'mappings',
                value: [{
                  type: 'value',
                  options: {
                    critical: { color: 'red', index: 0 },
                    warning: { color: 'orange', index: 1 },
                    info: { color: 'blue', index: 2 },
                    none: { color: 'green', index: 3 },
                  },
                }],
              },
            ],
          },
          {
            matcher: { id: 'byName', options: 'alert' },
            properties: [
              { id: 'custom.width', value: 210 },
              { id: 'links', value: [{ title: 'Runbook', url: config.runbookURLPattern % '${__value.raw}', targetBlank: true }] },
            ],
          },
          emptyCells,
        ] + links(config, [[name, std.get(names, name, name)] for name in columns]),
      },
      options: { showHeader: true, cellHeight: 'sm' },
      transformations: [{
        id: 'organize',
        options: {
          includeByName: { [name]: true for name in columns },
          renameByName: names,
          indexByName: { [columns[i]]: i for i in std.range(0, std.length(columns) - 1) },
        },
      }],
    },

  // One dot a label set: a query of x against a query of y. names: of the two axes. units: likewise.
  scatter(title, description, x, y, names, units)::
    panel('xychart', title, description, units[1], [q { format: 'table', instant: true, range: false } for q in [x, y]]) {
      // A panel without a version is read with the options that Grafana had before 11.1, which know no such series.
      pluginVersion: '11.1.0',
      fieldConfig: {
        defaults: { unit: units[1], custom: { pointSize: { fixed: 6 }, show: 'points', fillOpacity: 60 } },
        overrides: [
          { matcher: { id: 'byName', options: names[0] }, properties: [{ id: 'unit', value: units[0] }, { id: 'min', value: 0 }] },
          {
            matcher: { id: 'byName', options: names[1] },
            properties: [{ id: 'unit', value: units[1] }, { id: 'custom.scaleDistribution', value: { type: 'log', log: 10 } }],
          },
        ],
      },
      options: {
        mapping: 'manual',
        series: [{
          x: { matcher: { id: 'byName', options: names[0] } },
          y: { matcher: { id: 'byName', options: names[1] } },
          frame: { matcher: { id: 'byIndex', options: 0 } },
        }],
        legend: { showLegend: false, displayMode: 'list', placement: 'bottom', calcs: [] },
        tooltip: { mode: 'single', sort: 'none' },
      },
      transformations: [
        // Rows are put together by all fields that both have; names of metrics would keep them apart.
        { id: 'filterFieldsByName', options: { exclude: { names: ['__name__'] } } },
        { id: 'merge', options: {} },
        {
          id: 'organize',
          options: { excludeByName: { Time: true }, renameByName: { 'Value #A': names[0], 'Value #B': names[1] } },
        },
      ],
    },

  // A scatter plot, and beside it how many dots it has: without any Grafana draws nothing at all, no text either, whether
  // nothing is measured or one of the two alone. key: labels of a dot. without: what 0 means.
  countedScatter(title, description, x, y, key, names, units, without)::
    local counted = 'count(%(x)s and on (%(key)s) %(y)s) or 0 * count(%(x)s)' % { x: x, y: y, key: key };
    [
      $.scatter(title, description, $.query(x), $.query(y), names, units) { width:: 9 },
      $.stat('Dots', 'How many dots the plot beside has. NO DATA: nothing of it is measured. 0: %s.' % without, 'short', [
        $.query(counted, instant=true),
      ], [{ color: 'orange', value: 0 }, { color: 'blue', value: 1 }]) + $.plain { width:: 3, height:: 8 },
    ],

  // A graph of now, of edges alone: Grafana makes nodes of their ends. edges: vectors with labels source and target, and mainstat
  // where an edge has a figure. Once for each cluster: two of them may have components of one name.
  nodeGraph(config, title, description, edges)::
    panel('nodeGraph', '%s, $%s' % [title, config.clusterLabel], description, 'none', [
      $.query('label_join(%s, "id", " ", "source", "target")' % std.join(' or ', edges), instant=true, format='table'),
    ]) {
      repeat: config.clusterLabel,
      repeatDirection: 'v',
      options: { layoutAlgorithm: 'layered', zoomMode: 'cooperative' },
    },

  row(title, panels, collapsed=false):: { title: title, panels: panels, collapsed: collapsed },

  // A variable whose values are those of a label, `of`, of its own name by default. `multi` with All.
  variable(config, name, label, metric, matchers='', multi=true, of=name)::
    local query = 'label_values(%s{%s}, %s)' % [metric, matchers, of];
    {
      name: name,
      label: label,
      type: 'query',
      datasource: datasource,
      query: { query: query, refId: 'StandardVariableQuery' },
      definition: query,
      refresh: 2,  // when the time range changes
      multi: multi,
      includeAll: multi,
      allValue: if multi then '.*' else null,
      current: if multi then { text: 'All', value: '$__all' } else {},
      sort: 1,
    },

  // The whole dashboard. name: its file and, hashed, its uid, which stays the same for ever.
  dashboard(config, name, title, description, variables, rows)::
    {
      uid: std.md5('fabricpulse-' + name),
      title: config.dashboardNamePrefix + title,
      description: description,
      tags: config.dashboardTags,
      schemaVersion: 39,
      editable: false,
      graphTooltip: 1,  // one crosshair for all panels
      refresh: config.dashboardRefresh,
      time: { from: config.dashboardPeriod, to: 'now' },
      timezone: config.dashboardTimezone,
      templating: {
        list: [
          {
            name: 'datasource',
            label: 'Data source',
            type: 'datasource',
            query: 'prometheus',
            regex: config.datasourceFilterRegex,
            refresh: 1,
            hide: 0,
          },
          $.variable(config, config.clusterLabel, 'Cluster', 'fabricpulse_build_info', config.selector),
        ] + variables,
      },
      annotations: {
        list: [
          {
            // Beginnings of critical alerts only: an alert that lasts would fill every panel with red.
            name: 'Critical alerts begin',
            datasource: datasource,
            enable: true,
            expr:
              local firing = 'ALERTS{alertname=~"Fabric.+", alertstate="firing", severity="critical", %s}' % $.alertMatcher(config);
              '%s unless %s offset 1m' % [firing, firing],
            step: '60s',
            iconColor: 'red',
            titleFormat: '{{alertname}}',
            textFormat: '{{instance}} {{device}} {{workload}}',
          },
        ],
      },
      links: [{
        title: 'Fabricpulse',
        type: 'dashboards',
        tags: config.dashboardTags,
        asDropdown: true,
        includeVars: true,
        keepTime: true,
      }],
      panels: layout(rows),
    },

  // Panels from left to right, a new line where the 24 columns are full.
  local place(panels, y, id) =
    std.foldl(
      function(state, p)
        local wrap = state.x + p.width > 24;
        local x = if wrap then 0 else state.x;
        local top = if wrap then state.y + state.height else state.y;
        {
          x: x + p.width,
          y: top,
          height: if wrap then p.height else std.max(state.height, p.height),
          panels: state.panels + [p { id: id + std.length(state.panels), gridPos: { x: x, y: top, w: p.width, h: p.height } }],
        },
      panels,
      { x: 0, y: y, height: 0, panels: [] }
    ),

  local layout(rows) =
    std.foldl(
      function(state, row)
        local placed = place(row.panels, state.y + 1, state.id + 1);
        local header = {
          type: 'row',
          title: row.title,
          id: state.id,
          collapsed: row.collapsed,
          gridPos: { x: 0, y: state.y, w: 24, h: 1 },
          panels: if row.collapsed then placed.panels else [],
        };
        {
          y: if row.collapsed then state.y + 1 else placed.y + placed.height,
          id: state.id + 1 + std.length(row.panels),
          panels: state.panels + [header] + (if row.collapsed then [] else placed.panels),
        },
      rows,
      { y: 0, id: 1, panels: [] }
    ).panels,
}
