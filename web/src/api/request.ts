/**
 * One request to the hub, and its answer or its refusal. Path, query, body and answer have the types of the hub's OpenAPI
 * document. Addresses are relative: the hub may live below any path prefix.
 */
import type { paths } from './schema'

/** Why not, in the hub's own words. `status` is null where the hub gave no answer that makes sense. */
export interface Refusal {
  status: number | null
  message: string
  /** Seconds to wait before the next try, where the hub says so. */
  retryAfter?: number
  /** All that the hub said, where it says more than a message. */
  body?: object
}

export type Answer<T> = { done: T } | { refused: Refusal }

type Method = 'get' | 'post' | 'put' | 'patch' | 'delete'
type PathWith<M extends Method> = { [P in keyof paths]: paths[P][M] extends { responses: object } ? P : never }[keyof paths]
type Json<T> = T extends { content: { 'application/json': infer Body } } ? Body : never
type Done<Operation> = Operation extends { responses: infer R } ? Json<R[keyof R & (200 | 201 | 202)]> : never
type Parameters<Operation, Kind extends 'path' | 'query'> = Operation extends { parameters: { [K in Kind]?: infer Values } } ? NonNullable<Values> : never
type Body<Operation> = Operation extends { requestBody?: infer B } ? Json<NonNullable<B>> : never

type Path<Operation> = [Parameters<Operation, 'path'>] extends [never] ? { path?: never } : { path: Parameters<Operation, 'path'> }

interface Query<Operation> {
  /** What is undefined or null is left out. */
  query?: { [Name in keyof Parameters<Operation, 'query'>]?: Parameters<Operation, 'query'>[Name] | undefined }
}

interface Sent<Operation> {
  body?: Body<Operation>
  timeoutMs?: number
  /** Calls the request off, which then counts as not answered. */
  signal?: AbortSignal | undefined
}

type Address<Operation> = Path<Operation> & Query<Operation>
type Options<Operation> = Address<Operation> & Sent<Operation>
/** Only a path without parts can do without options. */
type Optional<T> = object extends T ? [options?: T] : [options: T]

const TIMEOUT_MS = 15_000
const NO_ANSWER: Refusal = { status: null, message: '' }

let onUnauthorized = (): void => {}

/** Called whenever the hub does not know who asks: a session may have ended. */
export function watchUnauthorized(listener: () => void): void {
  onUnauthorized = listener
}

export async function request<M extends Method, P extends PathWith<M>>(method: M, path: P, ...[options]: Optional<Options<paths[P][M]>>): Promise<Answer<Done<paths[P][M]>>> {
  const { body, timeoutMs = TIMEOUT_MS, signal }: Sent<paths[P][M]> = options ?? {}
  const sent = body === undefined ? {} : { headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) }
  try {
    const url = fill(path, options)
    return await understand(await fetch(url, { method: method.toUpperCase(), cache: 'no-store', ...sent, signal: whichever(AbortSignal.timeout(timeoutMs), signal) }))
  } catch {
    return { refused: NO_ANSWER }
  }
}

/** Where a GET goes, for links and for what is not JSON. */
export function addressOf<P extends PathWith<'get'>>(path: P, ...[options]: Optional<Address<paths[P]['get']>>): string {
  return fill(path, options)
}

function fill(path: string, { path: parts = {}, query = {} }: { path?: object; query?: object } = {}): string {
  const values = new Map(Object.entries(parts))
  const filled = path.slice(1).replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(values.get(name))))
  const kept = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== '')
  const text = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString()
  return text === '' ? filled : `${filled}?${text}`
}

/** `AbortSignal.any` is younger than the browsers this page runs in. */
function whichever(timeout: AbortSignal, other: AbortSignal | undefined): AbortSignal {
  if (other === undefined) return timeout
  const either = new AbortController()
  for (const signal of [timeout, other]) {
    if (signal.aborted) either.abort()
    else signal.addEventListener('abort', () => either.abort(), { once: true })
  }
  return either.signal
}

async function understand<T>(answer: Response): Promise<Answer<T>> {
  const body = (await answer.json().catch(() => null)) as (T & object & { error?: { message?: string } }) | null
  if (answer.ok && body !== null) return { done: body }
  if (answer.status === 401) onUnauthorized()
  // What a proxy says with success, but not in the hub's words, is its own page.
  return { refused: answer.ok ? NO_ANSWER : { status: answer.status, message: body?.error?.message ?? '', ...waitOf(answer), ...(body === null ? {} : { body }) } }
}

function waitOf(answer: Response): { retryAfter?: number } {
  const seconds = Number(answer.headers.get('Retry-After') ?? NaN)
  return seconds > 0 ? { retryAfter: Math.ceil(seconds) } : {}
}
