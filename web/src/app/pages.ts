/** The pages and what each of them is given. The fleet's, which most people open, comes with the shell; another one is loaded when it is first asked for. */
import type { Component } from 'svelte'
import type { Access } from '../account/access.svelte'
import Fleet from '../fleet/Fleet.svelte'
import type { FleetStore } from '../fleet/fleetStore.svelte'
import type { SavedView } from '../api/types'
import type { TimeMachine } from '../fleet/timeMachine.svelte'
import type { PageName, Route } from '../ui/route'

/** What lies over the page, and belongs to none of them. */
export type ShellDialog = 'help' | 'add' | 'log-in' | 'views'

/** A page takes of it what it needs. */
export interface PageProps {
  /** The fleet: the live one, or on the fleet page that of the moment which the time machine shows. */
  store: FleetStore
  timeMachine: TimeMachine
  /** Who is here, and what they may do. */
  access: Access
  route: Route
  /** Goes to what `hrefOf` names. `replace` changes the address without a stop of its own on the way back: for filters. */
  onNavigate: (href: string, how?: 'push' | 'replace') => void
  onDialog: (dialog: ShellDialog) => void
  onOpenView: (view: SavedView) => void
  /** True while a dialog lies over the page: keys are not meant for the page then. */
  isCovered: boolean
}

type Page = Component<PageProps>

const LOADERS: Record<PageName, () => Promise<{ default: Page }>> = {
  fleet: () => Promise.resolve({ default: Fleet }),
  mine: () => import('../users/Mine.svelte'),
  host: () => import('../host/Host.svelte'),
  gpu: () => import('../gpu/Gpu.svelte'),
  people: () => import('../users/People.svelte'),
  user: () => import('../users/User.svelte'),
  history: () => import('../usage/History.svelte'),
  reservations: () => import('../reservations/Reservations.svelte'),
  compare: () => import('../gpu/Compare.svelte'),
  reliability: () => import('../events/Reliability.svelte'),
  jobs: () => import('../jobs/Jobs.svelte'),
  events: () => import('../events/Events.svelte'),
  about: () => import('./About.svelte'),
  kiosk: () => import('./Kiosk.svelte'),
  device: () => import('../account/DeviceLogin.svelte'),
}

const loading = new Map<PageName, Promise<Page>>()

/** Fails where the hub has another version by now and no longer has this one's files, or does not answer. */
export function loadPage(name: PageName): Promise<Page> {
  const started = loading.get(name)
  if (started !== undefined) return started
  const page = LOADERS[name]().then((part) => part.default)
  loading.set(name, page)
  page.catch(() => loading.delete(name))
  return page
}
