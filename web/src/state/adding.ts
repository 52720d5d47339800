/** Adding a host: what is asked for each way in, what is sent, what went wrong, and what has become of the host. */
import type { Answer, Refusal } from '../api/ask'
import type { Host, HostOrigin, NewHost, Via } from '../api/types'
import { plain } from './format'
import { explain, type Refused } from './refusal'
import { inventory } from './models'

export type Field = 'name' | 'address' | 'port' | 'user' | 'jump'
export type Draft = Record<Field, string> & { via: Via }

interface Way {
  via: Via
  label: string
  meaning: string
  /** What may be said beside the name. */
  fields: readonly Field[]
  port: string
}

const PLACE: readonly Field[] = ['address', 'port']

export const WAYS: readonly Way[] = [
  { via: 'push', label: 'Its own agent reports (push)', meaning: 'You get one line to paste there. gpudeck has to be installed.', fields: [], port: '' },
  { via: 'pull', label: 'Its agent listens (pull)', meaning: 'gpudeck agent --listen runs there, and the hub asks it.', fields: PLACE, port: '7080' },
  { via: 'ssh', label: 'SSH, nothing to install', meaning: 'The hub logs in with its own key and reads the GPUs.', fields: [...PLACE, 'user', 'jump'], port: '22' },
  { via: 'scrape', label: 'An exporter runs there (scrape)', meaning: 'dcgm-exporter or another one for Prometheus.', fields: PLACE, port: '9400' },
]

export const FIELD_LABELS: Record<Field, string> = { name: 'Name', address: 'Address', port: 'Port', user: 'User', jump: 'Jump host' }

export function emptyDraft(): Draft {
  return { name: '', via: 'push', address: '', port: '', user: '', jump: '' }
}

export function wayOf(via: Via): Way {
  return WAYS.find((way) => way.via === via) ?? WAYS[0]!
}

/** What an empty field means. */
export function placeholder(field: Field, { via, name }: Draft): string {
  if (field === 'name') return via === 'push' ? 'gpu07' : 'gpu07 or gpu[01-16]'
  if (field === 'port') return wayOf(via).port
  return field === 'address' && !name.includes('[') ? name.trim() : ''
}

/** What the hub is sent: only what was filled in, and only what this way in knows. */
export function newHost(draft: Draft): NewHost {
  const { port, ...others } = said(draft)
  return { name: draft.name.trim(), via: draft.via, ...others, ...(port === undefined ? {} : { port: Number(port) }) }
}

function said(draft: Draft): Partial<Record<Field, string>> {
  const filled = wayOf(draft.via).fields.map((field) => [field, draft[field].trim()] as const)
  return Object.fromEntries(filled.filter(([, text]) => text !== ''))
}

export interface Complaint extends Refused {
  /** Where it belongs; null: to the whole. */
  field: Field | null
}

/** What can be seen without asking; everything else the hub knows better. */
export function mistake(draft: Draft): Complaint | null {
  if (draft.name.trim() === '') return { field: 'name', text: 'Every machine needs a name.' }
  const port = said(draft).port
  if (port !== undefined && !(/^\d{1,5}$/.test(port) && Number(port) >= 1 && Number(port) <= 65535)) return { field: 'port', text: 'A port is a number from 1 to 65535.' }
  return null
}

export function complaint(refusal: Refusal, draft: Draft): Complaint {
  return { field: fieldOf(refusal.message, draft), ...explain(refusal, addCommand(draft)) }
}

/** A refusal to remove a host. */
/** Whether a host can be removed here, and who names it where it cannot. */
export interface Removal {
  isPossible: boolean
  namedBy: string
}

/** A hub that does not say who named its hosts decides when it is asked to remove one. */
export function removalOf(answer: Answer<{ hosts: HostOrigin[] }>, id: string): Removal {
  const found = 'done' in answer ? answer.done.hosts.find((host) => host.id === id) : undefined
  const isPossible = found === undefined || found.is_added || found.origin === null
  return { isPossible, namedBy: isPossible ? '' : plain(found.origin ?? '') }
}

export function removalComplaint(refusal: Refusal, name: string): Complaint {
  return { field: null, ...explain(refusal, `gpudeck hosts remove ${quote(name)}`) }
}

/** The hub's messages begin with what they are about. */
function fieldOf(message: string, { via }: Draft): Field | null {
  if (/^(name:|this name|a token is for)|is there already/.test(message)) return 'name'
  return wayOf(via).fields.find((field) => new RegExp(`^${field}\\b`).test(message)) ?? null
}

/** The same, typed where it is allowed. */
export function addCommand(draft: Draft): string {
  const options = Object.entries({ ...(draft.via === 'push' ? {} : { via: draft.via }), ...said(draft) })
  return ['gpudeck hosts add', quote(draft.name.trim()), ...options.map(([name, text]) => `--${name} ${quote(text)}`)].join(' ')
}

function quote(text: string): string {
  return /^[\w.@%+:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`
}

export interface News {
  name: string
  state: 'problem' | 'waiting' | 'up'
  sign: string
  text: string
}

/** What has become of a host that was added. `host` is undefined until the stream tells of it. */
export function newsOf(name: string, via: Via, host: Host | undefined): News {
  const problems = plain(host?.problems.join(' ') ?? '')
  if (host?.status === 'up') return { name, state: 'up', sign: '✓', text: [reportsText(host), problems].filter(Boolean).join('. ') }
  // Most begin with the name, which stands before them already.
  if (problems !== '') return { name, state: 'problem', sign: '!', text: problems.startsWith(`${name} `) ? problems.slice(name.length + 1) : problems }
  return { name, state: 'waiting', sign: '○', text: `waiting for its first ${via === 'push' ? 'report' : 'answer'}…` }
}

function reportsText(host: Host): string {
  return host.gpus.length === 0 ? 'reports' : `reports: ${plain(inventory(host.gpus))}`
}

const MOST_NEWS = 6
const ORDER = ['problem', 'waiting', 'up']

/** News of a few of them, those that need somebody first; the board has them all. */
export function newsOfAll(names: readonly string[], via: Via, hosts: ReadonlyMap<string, Host>): News[] {
  const all = names.map((name) => newsOf(name, via, hosts.get(name)))
  return all.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state)).slice(0, MOST_NEWS)
}
