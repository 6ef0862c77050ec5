// Links of cells and lines to the page on what they name. They keep time, data source and cluster; selected is what the cell
// names, and what its row does where that is needed to tell it from others.
local page(name, config, selected) =
  '/d/%s?${__url_time_range}&${datasource:queryparam}&${%s:queryparam}%s' % [
    std.md5('fabricpulse-' + name),
    config.clusterLabel,
    std.join('', ['&var-%s=%s' % [variable, selected[variable]] for variable in std.objectFields(selected)]),
  ];
// By label: page, words, variable -> label.
local targets = {
  instance: ['fleet', 'NICs of this host', { instance: 'instance' }],
  peer: ['fleet', 'NICs of this host', { instance: 'peer' }],
  device: ['nic', 'Hardware of this NIC', { instance: 'instance', device: 'device' }],
  peer_device: ['nic', 'Hardware of this NIC', { instance: 'peer', device: 'peer_device' }],
  network: ['paths', 'Delay and loss in this network', { network: 'network' }],
  workload: ['job', 'This job', { workload: 'workload' }],
  job: ['pipeline', 'Daemons of this host', { instance: 'instance' }],
  daemon: ['pipeline', 'Daemons of this host', { instance: 'instance' }],
};
// form: how a label is written there.
local link(config, label, form) =
  local target = targets[label];
  { title: target[1], url: page(target[0], config, { [variable]: form % target[2][variable] for variable in std.objectFields(target[2]) }) };
local complete(label, labels) = std.objectHas(targets, label) && std.setDiff(std.set([targets[label][2][v] for v in std.objectFields(targets[label][2])]), std.set(labels)) == [];
{
  // Of the cells of a column, which is the label of that name; none where the row does not name enough.
  ofColumn(config, label, labels)::
    if complete(label, labels) then [link(config, label, '${__data.fields.%s}')] else [],
  // Of a line, by the most exact of its labels.
  ofSeries(config, labels)::
    [link(config, label, '${__field.labels.%s}') for label in ['device', 'workload', 'job', 'instance'] if std.member(labels, label) && complete(label, labels)][:1],
  // Of the cells of a matrix of hosts and networks, and of the names of its rows.
  ofCell(config, name)::
    [{ title: 'This host in this network', url: page(name, config, { instance: '${__data.fields[0]}', network: '${__field.name}' }) }],
  ofRow(config)::
    [{ title: 'NICs of this host', url: page('fleet', config, { instance: '${__data.fields[0]}' }) }],
}
