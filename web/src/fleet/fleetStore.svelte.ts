/**
 * The fleet page's state: what the stream brought, what the person asked for, and the board that follows from both.
 *
 * Figures change in place at once. The board itself (which lines, in which order) is arranged anew only while nobody
 * works on it, so that nothing slips away under a pointer.
 */
import type { Availability, Delta, Host, OverviewDelta, OverviewSnapshot, Snapshot } from '../api/types'
import { readSnapshot, type ConnectionError } from '../stream/fleetStream'
import { Follower, type ReadSnapshot } from '../stream/follower'
import type { Connection, ConnectionListener } from '../stream/connection'
import { GREYED_AFTER_SECONDS, judgeLink, LOST_AFTER_SECONDS, RESTING } from '../stream/link'
import { readAddress, type Address } from './address'
import { Arranger, inOldOrder, isSameArrangement, type Placed, type Sort } from './arrange'
import type { BootstrapFleet } from '../stream/bootstrap'
import { FleetModel, isSlice, type FleetDocument } from '../stream/fleetModel'
import { TotalsPoller, type ReadTotals } from '../stream/totalsPoller.svelte'
import { groupsOn, labelsOf, type Grouping } from './groups'
import type { View } from './moves'
import { expandDelta, expandSnapshot } from '../stream/overview'
import { parseQuery, phrasesOf, toggleState } from './query'

/** Above this many hosts the table is the better first view. */
const CARDS_UP_TO_HOSTS = 100
/** How often the time is looked at while no events come. */
const CLOCK_MS = 500
/** Seconds between two arrangements, and after the last sign of a person at work on the board. */
const SETTLE_SECONDS = 2
const ATTENDED_SECONDS = 5
/** Seconds by which the clocks may drift before the offset to the hub's is taken anew. */
const DRIFT_SECONDS = 2
/** Milliseconds for which the board stands still before hosts that came into view are asked for. */
const SEE_MS = 150

const seconds = (): number => Date.now() / 1000

export class FleetStore {
  readonly fleet = new FleetModel()
  text = $state('')
  viewChoice = $state<View | null>(null)
  sort = $state<Sort>('free')
  group = $state<Grouping>('host')
  /** Labels by which hosts can be grouped. */
  labels = $state.raw<readonly string[]>([])
  private phrases = $state.raw<readonly string[]>([])
  placed = $state.raw<readonly Placed[]>([])
  shownHosts = $state(0)
  connectionError = $state<ConnectionError | null>(null)
  /** Something came on the stream: what is shown is not only what came with the page. */
  isStreamed = $state(false)
  /** The last change came letter by letter and may go on. */
  isTyped = false
  /** The hub does not show the fleet to whoever asks. */
  onRefused = (): void => {}

  private now = $state(seconds())
  private hubOffset = $state(0)
  private lastEventAt = $state<number | null>(null)
  private overrides = new Map<string, boolean>()
  private readonly arranger = new Arranger()
  private arrangedAt = 0
  private attendedAt = 0
  /** Until this time nothing is said about the silence: the page rests, or has just woken. */
  private restsUntil = $state(0)
  private readonly totalsPoller: TotalsPoller
  private readonly follower: Follower<unknown, unknown>
  private readonly detailFollower: Follower<Snapshot, Delta>
  private readonly connection: Connection
  /** Of a large fleet the hosts that are streamed in full, and when something of them last came. */
  private wanted: ReadonlySet<string> = new Set()
  private detailAt = 0
  private isStarted = false
  private seeTimer: ReturnType<typeof setTimeout> | undefined
  private timer: ReturnType<typeof setInterval> | undefined

  readonly query = $derived(parseQuery(this.text, this.phrases))
  readonly link = $derived(this.now < this.restsUntil ? RESTING : judgeLink(this.lastEventAt, this.now, this.connectionError !== null))
  /** The hub's clock, Unix seconds; it goes on ticking while the connection is lost. */
  readonly hubNow = $derived(this.now + this.hubOffset)
  readonly totals = $derived((this.fleet.pulse.read(), this.fleet.totals))
  /** All of the fleet is here: what is not in it does not exist. */
  readonly isWhole = $derived((this.fleet.pulse.read(), this.fleet.isWhole))
  /** Hosts for which the board keeps room until they come. How many of them fit a search is not known. */
  readonly awaited = $derived(this.isWhole || !this.query.isEmpty ? 0 : Math.max(0, (this.totals?.hosts ?? 0) - this.fleet.entries.size))
  readonly isDemo = $derived((this.fleet.pulse.read(), this.fleet.demo))
  /** What is wrong in the fleet, the worst first. */
  readonly alertCounts = $derived((this.fleet.pulse.read(), this.fleet.alertCounts))
  readonly problems = $derived((this.fleet.pulse.read(), this.fleet.problems))
  readonly view: View = $derived(this.viewChoice ?? ((this.totals?.hosts ?? 0) > CARDS_UP_TO_HOSTS ? 'table' : 'cards'))
  readonly shownGpus = $derived(this.placed.reduce((sum, placed) => sum + placed.shown.length, 0))
  /** How many of all GPUs, and of those that are shown, are MIG slices. */
  readonly slices = $derived.by(() => {
    this.fleet.pulse.read()
    let sum = 0
    for (const entry of this.fleet.entries.values()) sum += entry.slices
    return sum
  })
  readonly shownSlices = $derived(this.placed.reduce((sum, { entry, shown }) => sum + (entry.slices === 0 ? 0 : shown.filter((slot) => isSlice(entry.untracked.gpus[slot]!)).length), 0))
  readonly address: Address = $derived({ text: this.text, view: this.viewChoice, sort: this.sort, group: this.group })
  /** The hosts of each group; empty where the board is not in groups. */
  readonly groups: ReadonlyMap<string, readonly Placed[]> = $derived(groupsOn(this.placed))

  /** `connect` makes the way on which events come: of an overview where `isOverview`. */
  constructor(
    connect: (listener: ConnectionListener) => Connection,
    search: string,
    read: ReadSnapshot = () => readSnapshot('api/v1/stream'),
    readTotals?: ReadTotals,
    /** Only what of each GPU is needed to find it is streamed; figures are of the hosts in view. */
    readonly isOverview = false,
  ) {
    this.totalsPoller = new TotalsPoller(readTotals)
    this.visit(search)
    const error = (error: ConnectionError): void => this.onConnectionError(error)
    this.follower = isOverview
      ? new Follower<OverviewSnapshot, OverviewDelta>({ snapshot: (fleet) => this.onStreamed(expandSnapshot(fleet)), delta: (delta) => this.onDelta(expandDelta(delta)), error }, read)
      : new Follower<Snapshot, Delta>({ snapshot: (fleet) => this.onStreamed(fleet), delta: (delta) => this.onDelta(delta), error }, read)
    this.detailFollower = new Follower(
      {
        snapshot: (fleet) => this.onDetails(() => this.fleet.loadDetails(fleet)),
        delta: (delta) => this.onDetails(() => this.fleet.applyDetails(delta)).fits,
        error: () => {},
      },
      async () => {
        this.connection.want([...this.wanted])
        return { error: 'unreachable' }
      },
    )
    this.connection = connect({
      event: (event) => this.follower.take(event),
      running: () => void this.follower.catchUp(),
      detail: (event) => this.detailFollower.take(event),
      error,
    })
  }

  /** Hosts whose figures are shown, and those near them. Of a large fleet these are streamed in full, and no others. */
  see(visible: readonly string[], near: readonly string[] = []): void {
    clearTimeout(this.seeTimer)
    if (!this.isOverview || visible.every((id) => this.wanted.has(id))) return
    this.seeTimer = setTimeout(() => {
      this.wanted = new Set([...visible, ...near])
      if (this.isStarted) this.connection.want([...this.wanted])
    }, SEE_MS)
  }

  /** Free GPUs as far as they are known at this moment; also while the page rests. */
  get free(): number | null {
    if (this.link === RESTING) return this.totalsPoller.free
    return this.link.phase === 'live' ? (this.totals?.free ?? null) : null
  }

  start(): void {
    this.connection.start()
    this.isStarted = true
    if (this.wanted.size > 0) this.connection.want([...this.wanted])
    // Events drive the clock while they come; the timer only takes over when they stop.
    this.timer = setInterval(() => {
      if (seconds() - this.now > 0.9) this.now = seconds()
    }, CLOCK_MS)
  }

  stop(): void {
    this.totalsPoller.stop()
    this.letGo()
  }

  /** Nobody sees the page: until `wake` it asks for the number in its title now and then, and for nothing else. */
  rest(): void {
    this.totalsPoller.start(this.free)
    this.restsUntil = Infinity
    this.letGo()
  }

  wake(): void {
    this.totalsPoller.stop()
    this.now = seconds()
    this.restsUntil = this.now + LOST_AFTER_SECONDS
    this.start()
  }

  /** Shows what the query part of an address asks for. */
  visit(search: string): void {
    this.isTyped = false
    const { text, view, sort, group } = readAddress(search)
    this.group = group
    this.text = text
    this.viewChoice = view
    this.sort = sort
    this.arrange()
  }

  search(text: string): void {
    this.isTyped = false
    this.text = text
    this.arrange()
  }

  /** A search that is still being written. */
  type(text: string): void {
    this.search(text)
    this.isTyped = true
  }

  show(view: View): void {
    this.isTyped = false
    this.viewChoice = view
  }

  toggleState(state: Availability): void {
    this.search(toggleState(this.text, state))
  }

  sortBy(sort: Sort): void {
    this.isTyped = false
    this.sort = sort
    this.arrange()
  }

  groupBy(group: Grouping): void {
    this.isTyped = false
    this.group = group
    this.arrange()
  }

  collapse(host: string, collapsed: boolean): void {
    this.overrides.set(host, collapsed)
    this.arrange()
  }

  collapseAll(collapsed: boolean): void {
    for (const { entry } of this.placed) this.overrides.set(entry.id, collapsed)
    this.arrange()
  }

  /** Somebody points at or walks through the board: leave everything where it is for a while. */
  attend(): void {
    this.attendedAt = seconds()
  }

  /** The hosts of these names, as they are now. Of two that share a name the one that reports. */
  named(names: readonly string[]): Map<string, Host> {
    this.fleet.pulse.read()
    const found = new Map<string, Host>()
    for (const name of names) {
      const hosts = this.fleet.named(name).map(({ untracked }) => untracked)
      const host = hosts.find(({ status }) => status === 'up') ?? hosts[0]
      if (host !== undefined) found.set(name, host)
    }
    return found
  }

  /** Shows a fleet that came with the page. It is current, but maybe not all of it: the stream has the rest. */
  look(fleet: BootstrapFleet): void {
    if (this.isOverview) this.onDetails(() => this.fleet.loadDetails(fleet))
    this.onSnapshot(fleet, fleet.is_whole ?? false)
  }

  private onStreamed(fleet: Snapshot): void {
    this.isStreamed = true
    this.onSnapshot(fleet)
  }

  private onDelta(delta: Delta): boolean {
    const { reshaped, fits } = this.fleet.apply(delta)
    this.onEvent(reshaped)
    return fits
  }

  private onSnapshot(fleet: FleetDocument, isWhole = true): void {
    this.fleet.load(fleet, isWhole, this.isOverview && this.isStreamed)
    this.labels = labelsOf(this.fleet.entries.values())
    this.phrases = phrasesOf([...this.fleet.entries.values()].map(({ untracked }) => untracked))
    this.onEvent(true)
  }

  private onDetails<Result>(take: () => Result): Result {
    this.detailAt = seconds()
    return take()
  }

  private onEvent(reshaped: boolean): void {
    this.now = this.lastEventAt = seconds()
    // Figures that no longer come must not look current.
    if (this.now - this.detailAt >= GREYED_AFTER_SECONDS) this.fleet.dropDetails()
    this.restsUntil = 0
    this.connectionError = null
    const offset = this.fleet.time - this.now
    if (Math.abs(offset - this.hubOffset) > DRIFT_SECONDS) this.hubOffset = offset
    if (reshaped || this.isSettled()) this.arrange(reshaped, this.isAttended())
  }

  private onConnectionError(error: ConnectionError): void {
    this.connectionError = error
    if (error === 'refused') this.onRefused()
  }

  private letGo(): void {
    this.isStarted = false
    this.connection.stop()
    this.follower.forget()
    this.detailFollower.forget()
    clearTimeout(this.seeTimer)
    clearInterval(this.timer)
  }

  private isSettled(): boolean {
    return this.now - this.arrangedAt >= SETTLE_SECONDS && !this.isAttended()
  }

  private isAttended(): boolean {
    return this.now - this.attendedAt < ATTENDED_SECONDS
  }

  /** A reshaped host needs new measures even where the order stays, as it does where `isKept`. */
  private arrange(reshaped = false, isKept = false): void {
    this.arrangedAt = seconds()
    const sorted = this.arranger.arrange(this.fleet.byName, this.query, this.sort, this.overrides, this.group)
    this.shownHosts = this.arranger.hostCount
    const placed = isKept ? inOldOrder(sorted, this.placed) : sorted
    if (reshaped || !isSameArrangement(placed, this.placed)) this.placed = placed
  }
}
