// A doubly linked list through its elements: no allocation, and any element is unlinked in O(1).
//
//   struct Request : ListNode<Request> {};
//   IntrusiveList<Request> posted;
//   posted.push_back(request);
//   request.unlink();
//
// An element is in at most one list per node; give it several nodes, told apart by a tag, to be in several lists. The
// list does not own its elements. Not thread-safe.
#pragma once

namespace axon {

template <typename T, typename Tag = void>
class IntrusiveList;

template <typename T, typename Tag = void>
class ListNode {
 public:
  ListNode() noexcept = default;
  ListNode(const ListNode&) = delete;
  ListNode& operator=(const ListNode&) = delete;

  bool linked() const noexcept { return next_ != this; }

  void unlink() noexcept {
    previous_->next_ = next_;
    next_->previous_ = previous_;
    next_ = previous_ = this;
  }

 private:
  friend class IntrusiveList<T, Tag>;
  ListNode* next_ = this;
  ListNode* previous_ = this;
};

template <typename T, typename Tag>
class IntrusiveList {
  using Node = ListNode<T, Tag>;

 public:
  bool empty() const noexcept { return !head_.linked(); }

  void push_back(T& element) noexcept { insert(element, head_); }
  void push_front(T& element) noexcept { insert(element, *head_.next_); }

  T* front() noexcept { return empty() ? nullptr : element_of(*head_.next_); }

  T* pop_front() noexcept {
    T* first = front();
    if (first != nullptr) static_cast<Node*>(first)->unlink();
    return first;
  }

  // The element after `element`, or null at the end. Fetch it before unlinking `element`.
  T* next(T& element) noexcept {
    Node* following = static_cast<Node&>(element).next_;
    return following == &head_ ? nullptr : element_of(*following);
  }

  template <typename Predicate>
  T* find(Predicate matches) noexcept {
    for (T* element = front(); element != nullptr; element = next(*element)) {
      if (matches(*element)) return element;
    }
    return nullptr;
  }

 private:
  // Takes a reference, so that the compiler omits the check for null.
  static T* element_of(Node& node) noexcept { return &static_cast<T&>(node); }
  static void insert(Node& node, Node& next) noexcept {
    node.previous_ = next.previous_;
    node.next_ = &next;
    next.previous_->next_ = &node;
    next.previous_ = &node;
  }

  Node head_;
};

}  // namespace axon
