/** What happened, and the hub about itself. */
import { ask, type Answer } from './ask'
import type { components } from './schema'

export type HubEvent = components['schemas']['Event']
export type Severity = HubEvent['severity']
export type EventPage = components['schemas']['EventList']
export type About = components['schemas']['About']

export function readEvents(query: Record<string, string>, signal?: AbortSignal): Promise<Answer<EventPage>> {
  return ask(`api/v1/events?${new URLSearchParams(query)}`, 'GET', undefined, undefined, signal)
}

export function readAbout(signal?: AbortSignal): Promise<Answer<About>> {
  return ask('api/v1/about', 'GET', undefined, undefined, signal)
}
