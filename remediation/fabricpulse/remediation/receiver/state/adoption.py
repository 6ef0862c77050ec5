"""What agents hold that this receiver has not commanded, as its journal is lost: the state that jobs are in counts."""

from fabricpulse.remediation.protocol import MAX_NICS
from fabricpulse.remediation.receiver.state.hold import stop_hold
from fabricpulse.remediation.receiver.state.model import AgentState, Target, TargetState
from fabricpulse.remediation.receiver.state.names import is_name
from fabricpulse.remediation.receiver.state.phases import next_phase
from fabricpulse.remediation.receiver.state.retention import DISOWNED, is_adopted, room_to_adopt
from fabricpulse.remediation.receiver.state.transaction import Transaction, with_changes


class Adoption:
    """nics : the devices of each host, where a membership file names them. initial_hold_s : of what is adopted."""

    def __init__(self, nics: dict[str, frozenset[str]], initial_hold_s: float) -> None:
        self._nics = nics
        self._initial_hold_s = initial_hold_s

    def report(
        self, transaction: Transaction, agent: AgentState, before: AgentState | None, now: float
    ) -> None:
        """Takes over what an agent reports, and gives back what it does not any more. before : its last report."""
        self._disown(transaction, agent, before)
        self._adopt(transaction, agent, before, now)

    def _adopt(
        self, transaction: Transaction, agent: AgentState, before: AgentState | None, now: float
    ) -> None:
        """What a receiver whose journal is lost has commanded the agent: the state that the jobs are in counts.

        Said by the first report since the start, or by two in a row: where agents share a token, or none is asked for,
        anybody can slip one in between. Of NICs that are out, or that are known, and that the host can have: its agent
        must not fill the memory with NICs that do not exist. before : its last report.
        """
        newer = {}
        for device, held in agent.held.items():
            known = transaction.targets.get(f"{agent.host}/{device}")
            if known is None and held.desired == "in_service" and held.generation < int(now * 1000):
                continue  # nothing to hold, and the clock gives the next decision a newer generation
            repeated = before is None or before.held.get(device) == held
            if repeated and held.generation > (known.generation if known is not None else 0):
                newer[device] = held
        if not newer:
            return
        own = set(transaction.targets_of(agent.host))
        room = MAX_NICS
        if agent.source and any(Target(agent.host, device).key not in own for device in newer):
            room = room_to_adopt(transaction, agent.source)
        for device, held in newer.items():
            target = Target(agent.host, device)
            if target.key not in own and (len(own) >= MAX_NICS or not self._is_nic(target)):
                continue
            if target.key not in own:
                if not room:
                    continue
                room -= 1
            own.add(target.key)
            self._supersede(transaction, target.key)
            current = transaction.targets.get(target.key) or TargetState(target=target)
            phase = next_phase(
                current.phase, "adopt_avoid" if held.desired == "avoid" else "adopt_in_service"
            )
            adopted = with_changes(
                current,
                desired=held.desired,
                phase=phase,
                generation=held.generation,
                op_id="",
                avoid_op_id="",
                hold_s=self._initial_hold_s,
                changed_at=now,
            )
            transaction.put_target(adopted)
            transaction.log(target.key, "adopted", desired=held.desired, generation=held.generation)

    @staticmethod
    def _supersede(transaction: Transaction, key: str) -> None:
        """Ends the operation of a target that is adopted: the agent has a newer one, and refuses it."""
        current = transaction.targets.get(key)
        action = transaction.actions.get(current.op_id) if current is not None else None
        if action is not None and action.outcome in ("pending", "unknown"):
            message = "its agent holds a newer generation"
            transaction.put_action(with_changes(action, outcome="superseded", message=message))
            transaction.log(key, "superseded", op_id=action.op_id)

    @staticmethod
    def _disown(transaction: Transaction, agent: AgentState, before: AgentState | None) -> None:
        """Ends what was adopted and is not what the agent holds: its alerts count again. A NIC that jobs do not use
        stays out: an agent that has lost its journal, too, cannot say why. One that was decided about is in service
        with its history, and older than whatever its agent holds. before : its last report."""
        if before is not None and (before.held, before.devices) == (agent.held, agent.devices):
            return
        for key in transaction.targets_of(agent.host):
            target = transaction.targets[key]
            if target.op_id or target.generation <= DISOWNED:
                continue
            held = agent.held.get(target.target.device)
            is_out = target.desired == "avoid" and agent.devices.get(target.target.device) is False
            if (held is None or held.generation < target.generation) and not is_out:
                if is_adopted(target):
                    transaction.drop("targets", [key])
                else:
                    transaction.put_target(
                        with_changes(
                            stop_hold(target),
                            desired="in_service",
                            phase=next_phase(target.phase, "adopt_in_service"),
                            generation=DISOWNED,
                        )
                    )
                transaction.log(key, "disowned", generation=target.generation)

    def _is_nic(self, target: Target) -> bool:
        """Whether membership has this NIC; without one, whether it is a name."""
        devices = self._nics.get(target.host, frozenset())
        return is_name(target.device) and (not self._nics or target.device in devices)
