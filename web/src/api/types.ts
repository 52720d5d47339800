/** The hub's words as TypeScript: names for the generated schema. */
import type { components } from './schema'

type Schemas = components['schemas']

export type Totals = Schemas['Totals']
export type Gpu = Schemas['Gpu']
export type Host = Schemas['Host']
export type Fleet = Schemas['Fleet']
export type Availability = Gpu['availability']
export type HealthLevel = Gpu['health']
export type HostStatus = Host['status']

/** A host to be watched, as the hub wants to hear of it, and what it answers. */
export type NewHost = Schemas['NewHost']
export type AddedHosts = Schemas['AddedHosts']
export type Via = AddedHosts['via']
/** Who named a host; null: nobody, it reports by itself. */
export type HostOrigin = Schemas['HostOrigin']

/** Who the page is used by, and what they may do. */
export type Me = Schemas['Me']
export type Session = Schemas['Session']
export type Trial = Schemas['Trial']
/** A program that wants to be logged in. */
export type PendingLogin = Schemas['PendingLogin']
/** Names of rules of which somebody is not told in person: by their own choice, and by the hub's settings. */
export type PersonalMutes = Schemas['PersonalMutes']
export type SavedView = Schemas['SavedView']
export type Account = Schemas['Account']
export type AccountChange = Schemas['AccountChange']
export type NewAccount = Schemas['NewAccount']
export type AccountRole = Account['role']
export type Token = Schemas['Token']
export type NewToken = Schemas['NewToken']
export type MadeToken = Schemas['MadeToken']
export type TokenRole = NewToken['role']
export type AuditEntry = Schemas['AuditEntry']

export type Process = Schemas['ShownProcess']
/** A fault that the driver told of. */
export type GpuEvent = Schemas['ShownEvent']

/** The events of the stream (docs/api.md). */
export type Snapshot = Schemas['StreamSnapshot']
export type Delta = Schemas['StreamDelta']
export type OverviewSnapshot = Schemas['OverviewSnapshot']
export type OverviewDelta = Schemas['OverviewDelta']
/** A host's rows in the arrays of deltas: its own among hosts, and its first GPU's among GPUs. */
export type HostRows = Snapshot['rows'][number]
export type HostChange = Schemas['HostChange']
export type GpuChange = Schemas['GpuChange']
export type GpuValues = Schemas['GpuValues']
export type HostValues = Schemas['HostValues']
export type ProcessValues = Schemas['ProcessValues']
/** One value for each row, or only those at some positions in `rows`. Null is unknown. */
export type Values = NonNullable<HostValues['last_report_at']>
/** A host of the overview. */
export type ShortHost = Schemas['ShortHost']

/** What the hub says about the past. Fields that may be missing are so where they are null. */
export type Usage = Schemas['Usage']
export type UsageRow = Schemas['UsageRow']
export type UserRow = Schemas['UserRow']
export type UsageBy = Usage['by']
export type UsageDay = Schemas['Day']
