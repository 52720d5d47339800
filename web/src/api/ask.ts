/** One question to the hub, and its answer or its refusal. Addresses are relative: the hub may live below any path prefix. */

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

const PATIENCE_MS = 15_000
const NO_ANSWER: Refusal = { status: null, message: '' }

let onStranger = (): void => {}

/** Called whenever the hub does not know who asks: a session may have ended. */
export function watchStrangers(listener: () => void): void {
  onStranger = listener
}

/** `signal` calls the question off, which then counts as not answered. */
export async function ask<T>(url: string, method = 'GET', body?: object, patience = PATIENCE_MS, signal?: AbortSignal): Promise<Answer<T>> {
  const sent = body === undefined ? {} : { headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) }
  try {
    return await understand(await fetch(url, { method, cache: 'no-store', ...sent, signal: whichever(AbortSignal.timeout(patience), signal) }))
  } catch {
    return { refused: NO_ANSWER }
  }
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
  if (answer.status === 401) onStranger()
  // What a proxy says with success, but not in the hub's words, is its own page.
  return { refused: answer.ok ? NO_ANSWER : { status: answer.status, message: body?.error?.message ?? '', ...waitOf(answer), ...(body === null ? {} : { body }) } }
}

function waitOf(answer: Response): { retryAfter?: number } {
  const seconds = Number(answer.headers.get('Retry-After') ?? NaN)
  return seconds > 0 ? { retryAfter: Math.ceil(seconds) } : {}
}
