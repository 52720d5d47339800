/** The hub's words as TypeScript: names for the generated schema, and the stream's events, which OpenAPI cannot express. */
import type { Alert, AlertCounts } from './alerts'
import type { HubEvent } from './events'
import type { components } from './schema'

type Schemas = components['schemas']

/** The hub writes every field: what it does not know is null. */
export type Totals = Required<Schemas['Totals']>
export type Gpu = Required<Schemas['Gpu']>
export type Host = Required<Omit<Schemas['Host'], 'gpus'>> & { gpus: Gpu[] }
export type Fleet = Required<Omit<Schemas['Fleet'], 'totals' | 'hosts'>> & { totals: Totals; hosts: Host[] }
export type Availability = Gpu['availability']
export type HealthLevel = Gpu['health']
export type HostStatus = Host['status']

/** A host to be watched, as the hub wants to hear of it, and what it answers. */
export type NewHost = Partial<Schemas['NewHost']> & { name: string }
export type AddedHosts = Schemas['AddedHosts']
export type Via = AddedHosts['via']
/** Who named a host; null: nobody, it reports by itself. */
export type HostOrigin = Schemas['HostOrigin']

/** Who the page is used by, and what they may do. */
export type Me = Schemas['Me']
export type Session = Schemas['OneSession']
/** Names of rules of which somebody is not told in person: by their own choice, and by the hub's settings. */
export type PersonalMutes = Schemas['PersonalMutes']
export type Account = Schemas['Account']
export type AccountChange = Schemas['AccountChange']
export type NewAccount = Schemas['NewAccount']
export type AccountRole = Account['role']
export type Token = Schemas['Token']
export type NewToken = Schemas['NewToken']
export type MadeToken = Schemas['MadeToken']
export type TokenRole = NewToken['role']
export type AuditEntry = Schemas['AuditEntry']

/** A process with every field; what is not known is null. */
export type Process = Required<Schemas['ShownProcess']>

/** A fault that the driver told of. */
export type GpuEvent = Required<Schemas['ShownEvent']>

/** A host's rows in the arrays of deltas: its own among hosts, and its first GPU's among GPUs. */
export type HostRows = [id: string, row: number, firstGpuRow: number]

/** The first event of the stream. */
export type Snapshot = Fleet & { rows?: HostRows[] }

/** The changed fields of a GPU except its metrics; lists and `reasons` come whole. */
export type GpuChange = { uuid: string } & Partial<Gpu>

/** The changed fields, except metrics, of a host whose set of GPUs stayed the same. */
export type HostChange = { id: string; gpus?: GpuChange[] } & Partial<Omit<Host, 'gpus'>>

/** One value for each row, or only those at some positions in `rows`. Null is unknown. */
export type Values = (number | null)[] | { at: number[]; to: (number | null)[] }

/** Values by metric for the hosts or GPUs in `rows`. */
export type Columns = { rows: number[]; [metric: string]: Values }

/** The numbers of all processes of each GPU in `rows`, in the order of its `processes`. */
export type ProcessColumns = { rows: number[] } & { [name in 'memory_used_bytes' | 'utilization_percent']?: (number | null)[][] }

/** What changed since the event before, to be applied in this order. Without changes: a heartbeat. */
export interface Delta {
  time: number
  totals: Totals
  /** The hub's own, whole, where they changed. */
  problems?: string[]
  /** Those that fire, whole, where they changed. */
  alerts?: Alert[]
  /** Of all of them, also of those that are not sent; with `alerts`. */
  alert_counts?: AlertCounts
  /** Another number whenever any reservation was made, changed or given back. */
  reservations?: number
  /** What happened, the oldest first. */
  events?: HubEvent[]
  removed?: string[]
  /** Whole hosts: new ones, and those whose set of GPUs changed. */
  hosts?: Host[]
  /** Of exactly these hosts. */
  rows?: HostRows[]
  changes?: HostChange[]
  gpus?: Columns
  /** Of hosts that reported: their metrics and `last_report_at`. */
  reports?: Columns
  processes?: ProcessColumns
  /** Of some hosts of the overview: their GPUs' mean utilization and highest temperature. */
  summaries?: { rows: number[]; utilization_percent: (number | null)[]; temperature_celsius: (number | null)[] }
}

/** A host of the overview (docs/api.md): `model` has what its GPUs share, and what is not told of one is empty or well. */
export type ShortHost = Pick<Host, 'id' | 'name' | 'display_name' | 'status' | 'via' | 'labels' | 'problems' | 'last_report_at'> & {
  model?: Partial<Gpu>
  gpus: (Pick<Gpu, 'uuid' | 'index' | 'label' | 'availability' | 'since'> & Partial<Gpu>)[]
}

/** What the hub says about the past. Fields that may be missing are so where they are null. */
export type Usage = Schemas['Usage']
export type UsageRow = Schemas['UsageRow']
export type UserRow = Schemas['UserRow']
export type UsageBy = Usage['by']
export type UsageDay = Schemas['Day']
