/** The hub's refusals as sentences for the person who asked. */
import type { Refusal } from '../api/request'
import { plain } from './format'

export interface Refused {
  text: string
  /** What to run instead, on the hub's machine. */
  command?: string
}

/** `command` is what works where the page may not. */
export function explain({ status, message }: Refusal, command?: string): Refused {
  if (status === null) return { text: 'The hub is not responding. Try again later.' }
  const words = plain(message).replace(/^(name|address|port|user|jump|password): /, '') || `The hub refused the request (HTTP ${status})`
  if (status !== 401 && status !== 403) return { text: sentence(words) }
  return { text: sentence(`Not allowed: ${words}`), ...(command === undefined ? {} : { command }) }
}

export function sentence(words: string): string {
  return /[.!?…]$/.test(words) ? words : `${words}.`
}
