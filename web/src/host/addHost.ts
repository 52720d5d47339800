/** Adding a host: the fields of each source, the request, errors, and the state of the hosts that were added. */
import type { Answer, Refusal } from '../api/request'
import type { Host, HostOrigin, NewHost, Via } from '../api/types'
import { plain } from '../ui/format'
import { explain, type Refused } from '../ui/apiErrors'
import { inventory } from '../stream/inventory'

export type Field = 'name' | 'address' | 'port' | 'user' | 'jump'
export type Draft = Record<Field, string> & { via: Via }

interface Source {
  via: Via
  label: string
  meaning: string
  /** The fields besides the name. */
  fields: readonly Field[]
  port: string
}

const PLACE: readonly Field[] = ['address', 'port']

export const SOURCES: readonly Source[] = [
  { via: 'push', label: 'Push: an agent on the host reports', meaning: 'You get one command to run on the host. It installs the agent as a service.', fields: [], port: '' },
  { via: 'pull', label: 'Pull: the hub polls an agent', meaning: 'gpudeck agent --listen runs on the host, and the hub reads it.', fields: PLACE, port: '7080' },
  { via: 'ssh', label: 'SSH: nothing to install', meaning: 'The hub logs in with its own key and reads the GPUs.', fields: [...PLACE, 'user', 'jump'], port: '22' },
  { via: 'scrape', label: 'Scrape: a Prometheus exporter', meaning: 'dcgm-exporter or another GPU exporter runs on the host.', fields: PLACE, port: '9400' },
]

export const FIELD_LABELS: Record<Field, string> = { name: 'Name', address: 'Address', port: 'Port', user: 'User', jump: 'Jump host' }

export function emptyDraft(): Draft {
  return { name: '', via: 'push', address: '', port: '', user: '', jump: '' }
}

export function sourceOf(via: Via): Source {
  return SOURCES.find((source) => source.via === via) ?? SOURCES[0]!
}

/** What an empty field means. */
export function placeholder(field: Field, { via, name }: Draft): string {
  if (field === 'name') return via === 'push' ? 'gpu07' : 'gpu07 or gpu[01-16]'
  if (field === 'port') return sourceOf(via).port
  return field === 'address' && !name.includes('[') ? name.trim() : ''
}

/** The request: only fields that were filled in and that belong to this source. */
export function newHost(draft: Draft): NewHost {
  const { port, ...others } = filledIn(draft)
  return { name: draft.name.trim(), via: draft.via, ...others, ...(port === undefined ? {} : { port: Number(port) }) }
}

function filledIn(draft: Draft): Partial<Record<Field, string>> {
  const filled = sourceOf(draft.via).fields.map((field) => [field, draft[field].trim()] as const)
  return Object.fromEntries(filled.filter(([, text]) => text !== ''))
}

export interface FormError extends Refused {
  /** Null: it concerns the whole form. */
  field: Field | null
}

/** What can be checked without the hub. */
export function validate(draft: Draft): FormError | null {
  if (draft.name.trim() === '') return { field: 'name', text: 'Enter a name.' }
  const port = filledIn(draft).port
  if (port !== undefined && !(/^\d{1,5}$/.test(port) && Number(port) >= 1 && Number(port) <= 65535)) return { field: 'port', text: 'The port must be a number from 1 to 65535.' }
  return null
}

export function formError(refusal: Refusal, draft: Draft): FormError {
  return { field: fieldOf(refusal.message, draft), ...explain(refusal, addCommand(draft)) }
}

/** Whether a host can be removed here, and where it is configured if not. */
export interface Removal {
  isPossible: boolean
  configuredIn: string
}

/** A hub that does not say who named its hosts decides when it is asked to remove one. */
export function removalOf(answer: Answer<{ hosts: HostOrigin[] }>, id: string): Removal {
  const found = 'done' in answer ? answer.done.hosts.find((host) => host.id === id) : undefined
  const isPossible = found === undefined || found.is_added || found.origin === null
  return { isPossible, configuredIn: isPossible ? '' : plain(found.origin ?? '') }
}

export function removalError(refusal: Refusal, name: string): FormError {
  return { field: null, ...explain(refusal, `gpudeck hosts remove ${quote(name)}`) }
}

/** The hub's messages begin with what they are about. */
function fieldOf(message: string, { via }: Draft): Field | null {
  if (/^(name:|this name|a token is for)|is there already/.test(message)) return 'name'
  return sourceOf(via).fields.find((field) => new RegExp(`^${field}\\b`).test(message)) ?? null
}

/** The same, typed where it is allowed. */
export function addCommand(draft: Draft): string {
  const options = Object.entries({ ...(draft.via === 'push' ? {} : { via: draft.via }), ...filledIn(draft) })
  return ['gpudeck hosts add', quote(draft.name.trim()), ...options.map(([name, text]) => `--${name} ${quote(text)}`)].join(' ')
}

function quote(text: string): string {
  return /^[\w.@%+:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`
}

export interface AddedHostStatus {
  name: string
  state: 'problem' | 'waiting' | 'up'
  sign: string
  text: string
}

/** The status of a host that was added. `host` is undefined until it is in the stream. */
export function addedHostStatus(name: string, via: Via, host: Host | undefined): AddedHostStatus {
  const problems = plain(host?.problems.join(' ') ?? '')
  if (host?.status === 'up') return { name, state: 'up', sign: '✓', text: [reportsText(host), problems].filter(Boolean).join('. ') }
  // Most begin with the name, which stands before them already.
  if (problems !== '') return { name, state: 'problem', sign: '!', text: problems.startsWith(`${name} `) ? problems.slice(name.length + 1) : problems }
  return { name, state: 'waiting', sign: '○', text: `waiting for the first ${via === 'push' ? 'report' : 'answer'}…` }
}

function reportsText(host: Host): string {
  return host.gpus.length === 0 ? 'reporting' : `reporting: ${plain(inventory(host.gpus))}`
}

const MOST_SHOWN = 6
const ORDER = ['problem', 'waiting', 'up']

/** The status of a few of them, those with problems first; the board has them all. */
export function addedHostStatuses(names: readonly string[], via: Via, hosts: ReadonlyMap<string, Host>): AddedHostStatus[] {
  const all = names.map((name) => addedHostStatus(name, via, hosts.get(name)))
  return all.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state)).slice(0, MOST_SHOWN)
}
